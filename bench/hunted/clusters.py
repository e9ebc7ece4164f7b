"""Random small clusters with everything that is planned with, each of a profile that says what there is much of."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

ZONE, REGION, HOST = "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "kubernetes.io/hostname"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
DRIVER, GPU_DRIVER = "ebs.csi.aws.com", "gpu.example.com"
_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
_APPS = ("a", "b", "c", "d")
_TEAMS = {"default": {}, "team-a": {"org": "one"}, "team-b": {"org": "one"}, "team-c": {"org": "two"}}
_DEPRECATED = (
    ("beta.kubernetes.io/os", "linux"),
    ("beta.kubernetes.io/arch", "amd64"),
    (OLD_ZONE, "za"),
)

_USUAL: Mapping[str, float] = {
    "node affinity": 0.15, "preferred nodes": 0.05, "tolerations": 0.2, "taints": 0.2, "spread": 0.2,
    "spread policies": 0.3, "soft spread": 0.05, "affinity": 0.1, "anti-affinity": 0.15, "preferred pods": 0.05,
    "namespaces": 0.3, "ports": 0.05, "daemonsets": 0.2, "limits": 0.3, "gangs": 0.05, "overhead": 0.05,
    "terminating": 0.1, "deprecated": 0.05, "without a zone": 0.2, "priorities": 0.2, "init": 0.1, "volumes": 0.0,
    "claims": 0.0, "label keys": 0.15, "odd selectors": 0.1, "gt": 0.2, "grid": 0.0,
}  # fmt: skip
PROFILES: Mapping[str, Mapping[str, float]] = {
    "mixed": _USUAL,
    "spreads": {
        **_USUAL, "spread": 0.75, "spread policies": 0.6, "taints": 0.4, "affinity": 0.03, "anti-affinity": 0.05,
    },
    "affinities": {
        **_USUAL, "affinity": 0.5, "anti-affinity": 0.4, "namespaces": 0.6, "spread": 0.08, "odd selectors": 0.2,
    },
    "nodes": {
        **_USUAL, "node affinity": 0.6, "tolerations": 0.5, "taints": 0.6, "ports": 0.3, "daemonsets": 0.7,
        "deprecated": 0.2, "overhead": 0.2, "spread": 0.05, "affinity": 0.03, "anti-affinity": 0.05,
    },
    "preferences": {**_USUAL, "preferred nodes": 0.5, "preferred pods": 0.4, "soft spread": 0.4},
    "volumes": {**_USUAL, "volumes": 0.6, "spread": 0.1, "affinity": 0.05, "anti-affinity": 0.05},
    "claims": {**_USUAL, "claims": 0.6, "spread": 0.05, "affinity": 0.05, "anti-affinity": 0.05, "daemonsets": 0.1},
    "gangs": {**_USUAL, "gangs": 0.6, "limits": 0.7, "priorities": 0.5},
    "grids": {
        **_USUAL, "grid": 1.0, "spread": 1.0, "spread policies": 0.1, "without a zone": 0.0, "taints": 0.05,
        "odd selectors": 0.0, "affinity": 0.03, "anti-affinity": 0.05, "node affinity": 0.05, "namespaces": 0.0,
    },
}  # fmt: skip
"""What there is of a field, as the chance that a pod, node, group or cluster has it."""


def cluster(profile: str, seed: int) -> dict[str, Any]:
    """Return the case of this profile and seed."""
    return _Drawn(f"{profile} {seed}", PROFILES[profile]).case(profile, seed)


class _Drawn:
    def __init__(self, seed: str, chances: Mapping[str, float]) -> None:
        self.random, self.chances = random.Random(seed), chances
        self.objects: list[Any] = []
        self.pod_groups: list[Any] = []
        self.claims: list[str] = []
        self.zones: list[str] = ["za", "zb", "zc"][: self.random.randint(1, 3)]
        self.in_grid = chances["grid"] > 0
        """Whether nodes and groups are of several capacity types, over which pods are spread as over zones."""

    def has(self, what: str) -> bool:
        return self.random.random() < self.chances[what]

    def any(self, *of: Any) -> Any:
        return self.random.choice(of)

    def some(self, of: Sequence[Any], most: int = 3) -> list[Any]:
        return self.random.sample(list(of), self.random.randint(1, min(most, len(of))))

    # The cluster

    def case(self, profile: str, seed: int) -> dict[str, Any]:
        volumes, claims = self.has("volumes"), self.has("claims")
        provisioners, devices = self.provisioners(claims=claims)
        nodes = [self.node(f"node-{n}", claims=claims) for n in range(self.any(0, 1, 1, 2, 2, 3, 4, 6))]
        daemonsets = [self.daemonset(n) for n in range(self.any(1, 1, 2))] if self.has("daemonsets") else []
        if volumes:
            self.storage(nodes)
        if claims:
            self.device_classes()
        specs = [self.pod_of_kind(app, volumes=volumes, claims=claims) for app in _APPS[: self.any(1, 2, 2, 3, 4)]]
        pending = [self.instance(self.any(*specs), n) for n in range(self.any(1, 2, 3, 4, 5, 6, 8, 10))]
        bound = [self.bound(self.any(*specs), n, self.any(*nodes)) for n in range(self.any(0, 1, 2, 4)) if nodes]
        if self.has("gangs"):
            self.gang(pending)
        return {
            "seed": seed,
            "features": {"profile": profile},
            "namespaces": [
                {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}},
                }
                for name, labels in {**_TEAMS, "kube-system": {}}.items()
            ],
            "nodes": nodes,
            "bound": bound,
            "pending": pending,
            "daemonsets": daemonsets,
            "podgroups": self.pod_groups,
            "runtimeclasses": [_RUNTIME],
            "objects": self.objects,
            "provisioners": provisioners,
            "devices": devices,
            "catalogue": None,
        }

    def labels(self) -> dict[str, str]:
        found = {}
        if not self.has("without a zone"):
            found["rack"] = self.any("r1", "r2", "r3")
        if self.in_grid:
            found[CAPACITY_TYPE] = self.any("spot", "on-demand")
        if self.random.random() < 0.4:
            found["disk"] = self.any("ssd", "hdd")
        if self.random.random() < 0.3:
            found["size"] = self.any("1", "2", "10")
        return found

    def taints(self) -> list[Any]:
        if not self.has("taints"):
            return []
        return [
            {
                "key": key,
                "value": self.any("x", "y"),
                "effect": self.any("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"),
            }
            for key in self.some(("dedicated", "spot"), 2)
        ]

    def node(self, name: str, *, claims: bool) -> dict[str, Any]:
        labels = {HOST: name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **self.labels()}
        if not self.has("without a zone"):
            labels[ZONE] = self.any(*self.zones)
            labels["topology.ebs.csi.aws.com/zone"] = labels[ZONE]
            if self.has("deprecated"):
                labels[OLD_ZONE] = labels[ZONE]
        if self.has("deprecated"):
            labels |= {"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64"}
        capacity = {
            "cpu": self.any("2", "4", "8"),
            "memory": self.any("4Gi", "8Gi", "16Gi"),
            "pods": self.any("3", "8", "110"),
        }
        spec: dict[str, Any] = {"taints": self.taints()}
        if self.random.random() < 0.05:
            spec["unschedulable"] = True
            spec["taints"].append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        if claims and self.random.random() < 0.6:
            self.slice(name)
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {
                "capacity": capacity,
                "allocatable": dict(capacity),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def provisioners(self, *, claims: bool) -> tuple[list[Any], list[Any]]:
        provisioners, devices, number = [], [], 0
        for of in range(self.any(1, 1, 2, 3)):
            groups = []
            for _ in range(self.any(2, 3, 4) if self.in_grid else self.any(1, 1, 2, 3)):
                group: dict[str, Any] = {
                    "id": f"g{number}",
                    "allocatable": {
                        "cpu": self.any("2", "4", "8", "16"),
                        "memory": self.any("4Gi", "8Gi", "32Gi"),
                        "pods": self.any(4, 8, 110),
                    },
                    "price_usd_per_hour": round(self.random.uniform(0.05, 1.0), 3),
                    "labels": self.labels(),
                }
                if not self.has("without a zone"):
                    group["zone"] = self.any(*self.zones)
                if taints := self.taints():
                    group["taints"] = taints
                if self.has("limits"):
                    group["max_size"] = self.any(0, 1, 1, 2, 3)
                if claims and self.random.random() < 0.6:
                    devices.append({**self.device(), "count": self.any(1, 2, 4), "node_groups": [group["id"]]})
                groups.append(group)
                number += 1
            provisioner: dict[str, Any] = {"name": f"p{of}", "node_groups": groups}
            if weight := self.any(0, 0, 10, 50):
                provisioner["weight"] = weight
            if self.has("limits"):
                provisioner["limits"] = {self.any("cpu", "nodes"): self.any("4", "8", "16")}
            if self.random.random() < 0.2:
                provisioner["labels"] = {"pool": self.any("x", "y")}
            provisioners.append(provisioner)
        return provisioners, devices

    def daemonset(self, number: int) -> dict[str, Any]:
        labels = {"app": self.any("ds", "ds", "a")}
        spec = self.containers()
        if self.random.random() < 0.6:
            spec["tolerations"] = [{"operator": "Exists"}]
        if self.random.random() < 0.3:
            spec["nodeSelector"] = self.selector()
        if self.has("ports"):
            spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": self.any(8080, 9090)}]
        return {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": f"ds{number}", "namespace": "default" if labels == {"app": "a"} else "kube-system"},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        }

    # Pods

    def containers(self) -> dict[str, Any]:
        def requests() -> dict[str, Any]:
            found = {}
            if self.random.random() < 0.8:
                found["cpu"] = self.any("100m", "500m", "1", "2", "3500m")
            if self.random.random() < 0.5:
                found["memory"] = self.any("64Mi", "1Gi", "3Gi", "1.5Gi")
            return found

        spec: dict[str, Any] = {"containers": [{"name": "c0", "image": "x", "resources": {"requests": requests()}}]}
        if self.has("init"):
            init: dict[str, Any] = {"name": "i0", "image": "x", "resources": {"requests": requests()}}
            if self.any(True, False):
                init["restartPolicy"] = "Always"
            spec["initContainers"] = [init]
        return spec

    def selector(self) -> dict[str, str]:
        if self.has("deprecated"):
            return dict([self.any(*_DEPRECATED)])
        key, values = self.any(
            (ZONE, self.zones),
            ("rack", ["r1", "r2"]),
            ("disk", ["ssd", "hdd"]),
            ("pool", ["x"]),
            ("kubernetes.io/os", ["linux"]),
        )
        return {key: self.any(*values)}

    def pod_of_kind(self, app: str, *, volumes: bool, claims: bool) -> dict[str, Any]:
        namespace = self.any(*_TEAMS) if self.has("namespaces") else "default"
        spec = self.containers()
        if self.random.random() < 0.15:
            spec["nodeSelector"] = self.selector()
        if affinity := self.affinity(app):
            spec["affinity"] = affinity
        if spreads := self.spreads(app):
            spec["topologySpreadConstraints"] = spreads
        if self.has("tolerations"):
            spec["tolerations"] = [self.toleration() for _ in range(self.any(1, 2))]
        if self.has("ports"):
            spec["containers"][0]["ports"] = [self.port()]
        if self.has("overhead"):
            spec["runtimeClassName"] = "heavy"
        if self.has("priorities"):
            spec["priority"] = self.any(1, 10, 1000)
        if volumes and self.has("volumes"):
            self.volume(spec, namespace)
        if claims and self.has("claims"):
            spec["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": self.template(namespace)}]
        return {"metadata": {"name": f"w-{app}", "namespace": namespace, "labels": {"app": app}}, "spec": spec}

    def affinity(self, app: str) -> dict[str, Any]:
        affinity: dict[str, Any] = {}
        if self.has("node affinity"):
            terms = [{"matchExpressions": self.expressions()} for _ in range(self.any(1, 1, 2))]
            affinity.setdefault("nodeAffinity", {})[_REQUIRED] = {"nodeSelectorTerms": terms}
        if self.has("preferred nodes"):
            affinity.setdefault("nodeAffinity", {})[_PREFERRED] = [
                {"weight": self.any(1, 10, 100), "preference": {"matchExpressions": self.expressions()}}
                for _ in range(self.any(1, 2))
            ]
        for what, key in (("affinity", "podAffinity"), ("anti-affinity", "podAntiAffinity")):
            if self.has(what):
                affinity.setdefault(key, {})[_REQUIRED] = [self.term(app) for _ in range(self.any(1, 1, 1, 2))]
            if self.has("preferred pods"):
                affinity.setdefault(key, {})[_PREFERRED] = [
                    {"weight": self.any(1, 10, 100), "podAffinityTerm": self.term(app)}
                ]
        return affinity

    def port(self) -> dict[str, Any]:
        port: dict[str, Any] = {"containerPort": 80, "hostPort": self.any(8080, 9090)}
        if self.any(True, False):
            port |= {"hostIP": self.any("0.0.0.0", "10.0.0.1", "10.0.0.2"), "protocol": self.any("TCP", "UDP")}
        return port

    def toleration(self) -> dict[str, Any]:
        if self.random.random() < 0.15:
            return {"operator": "Exists"}
        found: dict[str, Any] = {"key": self.any("dedicated", "spot")}
        if self.any(True, False):
            found["operator"] = "Exists"
        else:
            found["value"] = self.any("x", "y")
        if self.random.random() < 0.6:
            found["effect"] = self.any("NoSchedule", "NoSchedule", "NoExecute")
        return found

    def expressions(self) -> list[Any]:
        found = []
        for _ in range(self.any(1, 1, 2)):
            if self.has("gt"):
                found.append({"key": "size", "operator": self.any("Gt", "Lt"), "values": [self.any("1", "2", "5")]})
                continue
            key, values = self.any(
                (ZONE, self.zones),
                ("rack", ["r1", "r2", "r3"]),
                ("disk", ["ssd", "hdd"]),
                (HOST, ["node-0", "node-1"]),
                ("pool", ["x", "y"]),
                ("size", ["1", "10"]),
            )
            operator = self.any("In", "In", "NotIn", "Exists", "DoesNotExist")
            expression = {"key": key, "operator": operator}
            if operator in {"In", "NotIn"}:
                expression["values"] = self.some(values, 2)
            found.append(expression)
        return found

    def label_selector(self, app: str) -> dict[str, Any] | None:
        if self.has("odd selectors"):
            odd: list[dict[str, Any] | None] = [
                None,
                {},
                {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
                {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
            ]
            return self.random.choice(odd)
        if self.random.random() < 0.7:
            return {"matchLabels": {"app": app if self.random.random() < 0.7 else self.any(*_APPS)}}
        operator = self.any("In", "NotIn")
        return {"matchExpressions": [{"key": "app", "operator": operator, "values": self.some(_APPS, 2)}]}

    def term(self, app: str) -> dict[str, Any]:
        found: dict[str, Any] = {"topologyKey": self.any(ZONE, ZONE, HOST, HOST, "rack")}
        if self.has("deprecated"):
            found["topologyKey"] = OLD_ZONE
        selector = self.label_selector(app)
        if selector is not None:
            found["labelSelector"] = selector
        if self.has("namespaces"):
            which = self.any("names", "selector", "both", "all")
            if which in {"names", "both"}:
                found["namespaces"] = self.some(list(_TEAMS), 2)
            if which in {"selector", "both"}:
                found["namespaceSelector"] = self.any(
                    {"matchLabels": {"org": "one"}},
                    {"matchExpressions": [{"key": "org", "operator": "Exists"}]},
                    {"matchExpressions": [{"key": "org", "operator": "DoesNotExist"}]},
                )
            if which == "all":
                found["namespaceSelector"] = {}
        if selector is not None and self.has("label keys"):
            found[self.any("matchLabelKeys", "mismatchLabelKeys")] = ["version"]
        return found

    def spreads(self, app: str) -> list[Any]:
        many = (2, 2, 3) if self.in_grid else (1, 1, 2)
        found = [self.spread(app, "DoNotSchedule") for _ in range(self.any(*many))] if self.has("spread") else []
        if self.has("soft spread"):
            found.append(self.spread(app, "ScheduleAnyway"))
        return list({(each["topologyKey"], each["whenUnsatisfiable"]): each for each in found}.values())

    def spread(self, app: str, unsatisfiable: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "maxSkew": self.any(1, 1, 1, 2),
            "topologyKey": self.any(ZONE, CAPACITY_TYPE) if self.in_grid else self.any(ZONE, ZONE, HOST, "rack"),
            "whenUnsatisfiable": unsatisfiable,
        }
        if self.has("deprecated"):
            found["topologyKey"] = OLD_ZONE
        selector = self.label_selector(app)
        if selector is not None:
            found["labelSelector"] = selector
        if self.has("spread policies"):
            if unsatisfiable == "DoNotSchedule" and self.any(True, False):
                found["minDomains"] = self.any(1, 2, 3)
            if self.any(True, False):
                found["nodeAffinityPolicy"] = self.any("Honor", "Ignore")
            if self.any(True, False):
                found["nodeTaintsPolicy"] = self.any("Honor", "Ignore")
        if selector is not None and self.has("label keys"):
            found["matchLabelKeys"] = ["version"]
        return found

    def instance(self, kind: Mapping[str, Any], number: int) -> dict[str, Any]:
        metadata = kind["metadata"]
        labels = dict(metadata["labels"])
        if self.random.random() < 0.3:
            labels["version"] = self.any("1", "2")
        if self.random.random() < 0.1:
            labels["tier"] = "front"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{metadata['name']}-{number}", "namespace": metadata["namespace"], "labels": labels},
            "spec": kind["spec"],
        }

    def bound(self, kind: Mapping[str, Any], number: int, node: Mapping[str, Any]) -> dict[str, Any]:
        pod = self.instance(kind, 100 + number)
        left_out = {"resourceClaims", "volumes"}
        spec = {key: value for key, value in kind["spec"].items() if key not in left_out}
        spec["nodeName"] = node["metadata"]["name"]
        for each in spec["containers"]:
            if self.any(True, False):
                spec["containers"] = [{**each, "resources": {"requests": {"cpu": "100m"}}}]
        metadata = {**pod["metadata"]}
        if self.has("terminating"):
            metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
        return {**pod, "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}

    def gang(self, pending: Sequence[Any]) -> None:
        chosen = [each for each in pending if each["metadata"]["namespace"] == pending[0]["metadata"]["namespace"]]
        chosen = chosen[: self.any(1, 2, 3, 4)]
        namespace = chosen[0]["metadata"]["namespace"]
        self.pod_groups.append(
            {
                "apiVersion": "scheduling.x-k8s.io/v1alpha1",
                "kind": "PodGroup",
                "metadata": {"name": "gang", "namespace": namespace},
                "spec": {"minMember": self.random.randint(1, len(chosen))},
            }
        )
        for each in chosen:
            each["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "gang"

    # Volumes and devices

    def storage(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        wait = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": DRIVER}
        about = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
        self.objects += [
            {
                **about,
                "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                **wait,
            },
            {
                **about,
                "metadata": {"name": "tied"},
                **wait,
                "allowedTopologies": [
                    {
                        "matchLabelExpressions": [
                            {"key": "topology.ebs.csi.aws.com/zone", "values": [self.any(*self.zones)]}
                        ]
                    }
                ],
            },
        ]
        for node in nodes:
            name = node["metadata"]["name"]
            zone = ["topology.ebs.csi.aws.com/zone"] if ZONE in node["metadata"]["labels"] else []
            self.objects.append(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": name},
                    "spec": {
                        "drivers": [
                            {
                                "name": DRIVER,
                                "nodeID": name,
                                "topologyKeys": zone,
                                "allocatable": {"count": self.any(1, 2, 25)},
                            }
                        ]
                    },
                }
            )

    def volume(self, spec: dict[str, Any], namespace: str) -> None:
        name = f"claim-{len(self.claims)}"
        self.claims.append(name)
        claim: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "accessModes": [self.any("ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod")],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        which = self.any("default", "tied", "bound", "bound", "ephemeral")
        if which == "ephemeral":
            spec["volumes"] = [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim["spec"]}}}]
            claim["spec"]["accessModes"] = ["ReadWriteOnce"]
            return
        if which == "tied":
            claim["spec"]["storageClassName"] = "tied"
        if which == "bound":
            claim["metadata"] |= {"uid": f"uid-{name}", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
            claim["spec"] |= {"storageClassName": "fast", "volumeName": f"pv-{name}"}
            claim["status"] = {"phase": "Bound"}
            volume: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"pv-{name}"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": claim["spec"]["accessModes"],
                    "storageClassName": "fast",
                    "csi": {"driver": DRIVER, "volumeHandle": name},
                    "claimRef": {
                        "kind": "PersistentVolumeClaim",
                        "namespace": namespace,
                        "name": name,
                        "uid": f"uid-{name}",
                    },
                },
                "status": {"phase": "Bound"},
            }
            if self.any(True, True, False):
                key = self.any(ZONE, "topology.ebs.csi.aws.com/zone")
                terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [self.any(*self.zones)]}]}]
                volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
            self.objects.append(volume)
        self.objects.append(claim)
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]

    def device(self) -> dict[str, Any]:
        big = self.any(True, False)
        return {
            "driver": GPU_DRIVER,
            "attributes": {"model": "big" if big else "small"},
            "capacity": {"memory": "80Gi" if big else "20Gi"},
        }

    def slice(self, node: str) -> None:
        devices = []
        for number in range(self.any(1, 2, 4)):
            of = self.device()
            devices.append(
                {
                    "name": f"d{number}",
                    "attributes": {key: {"string": value} for key, value in of["attributes"].items()},
                    "capacity": {key: {"value": value} for key, value in of["capacity"].items()},
                }
            )
        self.objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{node}-gpus"},
                "spec": {
                    "driver": GPU_DRIVER,
                    "nodeName": node,
                    "devices": devices,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                },
            }
        )

    def device_classes(self) -> None:
        about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        driver = {"cel": {"expression": f'device.driver == "{GPU_DRIVER}"'}}
        big = {"cel": {"expression": f'device.attributes["{GPU_DRIVER}"].model == "big"'}}
        self.objects += [
            {**about, "metadata": {"name": "gpu"}, "spec": {"selectors": [driver]}},
            {**about, "metadata": {"name": "big"}, "spec": {"selectors": [driver, big]}},
        ]

    def template(self, namespace: str) -> str:
        name = f"template-{len(self.objects)}"
        asked: dict[str, Any] = {"deviceClassName": self.any("gpu", "gpu", "big")}
        if self.random.random() < 0.15:
            asked["allocationMode"] = "All"
        else:
            asked["count"] = self.any(1, 1, 2)
        self.objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": asked}]}}},
            }
        )
        return name


_RUNTIME: Mapping[str, Any] = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "heavy"},
    "handler": "heavy",
    "overhead": {"podFixed": {"cpu": "500m", "memory": "256Mi"}},
}
