"""Where the kube-scheduler lets a pod go for its volumes, and what it binds there: VolumeBinding, VolumeZone,
VolumeRestrictions, NodeVolumeLimits of Kubernetes 1.36, one pod after the other, plain and slow. Shares nothing with
`cagrpc` but the objects. Three things beside the scheduler's filters, as a pod that breaks them could not start: the
volume of a ReadWriteOnce claim is attached to one node at a time; volumes count for a node's limit that are bound only
with the pod; and what controllers do at once is done (claims of ephemeral volumes are made, volumes that are kept for a
claim are bound to it).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from tests.support.scheduler.cluster import Machine, World, by_owner, matches_terms

Bound = frozenset[tuple[str, str]]
"""(claim, volume); a volume that a driver has made is `made for <claim> in <zone>`."""
Placed = frozenset[tuple[str, str]]
"""(pod, node)."""

ZONE = "topology.kubernetes.io/zone"
_TOPOLOGY = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    ZONE: ZONE,
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_BOUND = "pv.kubernetes.io/bind-completed"
_SELECTED = "volume.kubernetes.io/selected-node"
_UNITS = {"Gi": 2**30, "Mi": 2**20}
_MADE = "made for "


class Volumes:
    def __init__(self, world: World) -> None:
        self._pods = world.of("Pod")
        self._classes = world.of("StorageClass")
        self._volumes = world.of("PersistentVolume")
        self._claims = world.of("PersistentVolumeClaim")
        self._attached = [each["spec"] for each in world.of("VolumeAttachment").values()]
        for name, pod in self._pods.items():
            for volume in pod["spec"].get("volumes", ()):
                if "ephemeral" in volume:
                    self._claims.setdefault(f"{name}-{volume['name']}", self._made(pod, volume))

    def _made(self, pod: Any, volume: Any) -> Any:
        spec = dict(volume["ephemeral"]["volumeClaimTemplate"]["spec"])
        default = [n for n, each in self._classes.items() if each["metadata"].get("annotations", {}).get(_DEFAULT)]
        if "storageClassName" not in spec and default:
            spec["storageClassName"] = default[0]
        name = f"{pod['metadata']['name']}-{volume['name']}"
        owner = {"kind": "Pod", "uid": pod["metadata"]["uid"], "controller": True}
        return {
            "metadata": {"name": name, "uid": f"uid-{name}", "ownerReferences": [owner]},
            "spec": spec,
            "status": {},
        }

    def start(self) -> Bound:
        """Return what is bound once controllers have done what they do at once."""
        found = set()
        for name, claim in self._claims.items():
            if claim["spec"].get("volumeName") and _BOUND in claim["metadata"].get("annotations", {}):
                found.add((name, claim["spec"]["volumeName"]))
        for name, claim in self._claims.items():
            if not claim["spec"].get("volumeName"):
                kept = [v for v, volume in self._volumes.items() if self._kept(volume, claim) and self._fits(v, claim)]
                found.update((name, each) for each in sorted(kept)[:1])
        return frozenset(found)

    def place(self, pod: str, node: Machine, placed: Placed, bound: Bound) -> Iterator[Bound]:
        """Yield what may be bound after the pod has been; nothing where it may not go to the node."""
        claims = list(self._claims_of(pod))
        if self._is_refused(pod, claims) or not self._is_single(pod, node, claims, placed):
            return
        has = dict(bound)
        there = [self.doc(has[claim]) for claim, _ in claims if claim in has]
        if not all(there) or not all(_reaches(volume, node) for volume in there):
            return
        zoned = [self.doc(has[claim]) for claim, ephemeral in claims if claim in has and not ephemeral]
        if not all(_in_zone(volume, node) for volume in zoned):
            return
        if not self._is_within_limits(pod, node, placed, has):
            return
        for more in set(self._bindings([claim for claim, _ in claims if claim not in has], node, bound)):
            if self._is_within_limits(pod, node, placed, dict(bound | more)):
                yield bound | more

    # One after the other of the filters

    def _claims_of(self, pod: str) -> Iterator[tuple[str, bool]]:
        for volume in self._pods[pod]["spec"].get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                yield volume["persistentVolumeClaim"]["claimName"], False
            elif "ephemeral" in volume:
                yield f"{pod}-{volume['name']}", True

    def _is_refused(self, pod: str, claims: list[tuple[str, bool]]) -> bool:
        """Whether some claim keeps the pod off every node."""
        for name, ephemeral in claims:
            claim = self._claims.get(name)
            if claim is None or claim["status"].get("phase") == "Lost" or "deletionTimestamp" in claim["metadata"]:
                return True
            owners = [each["uid"] for each in claim["metadata"].get("ownerReferences", ()) if each.get("controller")]
            if ephemeral and owners != [self._pods[pod]["metadata"]["uid"]]:
                return True
        return False

    def _is_single(self, pod: str, node: Machine, claims: list[tuple[str, bool]], placed: Placed) -> bool:
        """Whether a claim for one pod has no other pod, and one for one node no pod on another."""
        for name, _ in claims:
            modes = set(self._claims[name]["spec"].get("accessModes", ()))
            others = [where for other, where in placed if other != pod and name in dict(self._claims_of(other))]
            if "ReadWriteOncePod" in modes and others:
                return False
            if modes and modes <= {"ReadWriteOnce", "ReadWriteOncePod"} and {*others} - {node.name}:
                return False
        return True

    def _is_within_limits(self, pod: str, node: Machine, placed: Placed, bound: dict[str, str]) -> bool:
        new = {h for claim, _ in self._claims_of(pod) if (h := self._handle(claim, bound))}
        mine = by_owner(placed)[node.name]
        there = {h for other in mine for c, _ in self._claims_of(other) if (h := self._handle(c, bound))}
        kept = set()
        for each in self._attached:
            volume = self._volumes.get(each["source"]["persistentVolumeName"])
            if each["nodeName"] == node.name and volume and volume["spec"].get("csi"):
                kept.add((each["attacher"], volume["spec"]["csi"]["volumeHandle"]))
        for driver, most in node.limits.items():
            # A volume that an attachment keeps there already is counted twice when a pod with it comes, as upstream.
            count = sum(each[0] == driver for each in new - there)
            if count and count + sum(each[0] == driver for each in there | kept) > most:
                return False
        return True

    def _handle(self, claim: str, bound: dict[str, str]) -> tuple[str, str] | None:
        if claim in bound and bound[claim] in self._volumes:
            csi = self._volumes[bound[claim]]["spec"].get("csi")
            return (csi["driver"], csi["volumeHandle"]) if csi else None
        if claim not in self._claims:
            return None
        of = self._classes.get(self._claims[claim]["spec"].get("storageClassName") or "")
        return (of["provisioner"], claim) if of else None

    def _bindings(self, claims: list[str], node: Machine, bound: Bound) -> Iterator[Bound]:
        """Yield what the claims are bound to on the node: volumes that are there, the smallest first, or new ones."""
        for claim in claims:
            spec = self._claims[claim]["spec"]
            of = self._classes.get(spec.get("storageClassName") or "")
            if spec.get("volumeName") or of is None or of["volumeBindingMode"] != "WaitForFirstConsumer":
                return
            chosen = self._claims[claim]["metadata"].get("annotations", {}).get(_SELECTED)
            if chosen is not None and chosen != node.name:
                return
        # The scheduler sorts by size; claims of one size, and volumes of one size, are in no order.
        for order in set(permutations(claims)):
            if list(map(self._asked, order)) == sorted(map(self._asked, order)):
                yield from self._bind(order, node, frozenset(), {volume for _, volume in bound})

    def _bind(self, claims: tuple[str, ...], node: Machine, found: Bound, taken: set[str]) -> Iterator[Bound]:
        if not claims:
            yield found
            return
        claim, *rest = claims
        fitting = {}
        if _SELECTED not in self._claims[claim]["metadata"].get("annotations", {}):
            suits = [name for name in self._volumes if name not in taken and self._suits(name, claim, node)]
            fitting = {name: _bytes(self._volumes[name]["spec"]["capacity"]["storage"]) for name in suits}
        if fitting:
            for name in [name for name, size in fitting.items() if size == min(fitting.values())]:
                yield from self._bind(tuple(rest), node, found | {(claim, name)}, taken | {name})
        elif self._can_be_made(claim, node):
            made = f"{_MADE}{claim} in {node.labels.get(ZONE, '')}"
            yield from self._bind(tuple(rest), node, found | {(claim, made)}, taken)

    def _asked(self, claim: str) -> int:
        return _bytes(self._claims[claim]["spec"].get("resources", {}).get("requests", {}).get("storage", "0Gi"))

    def _suits(self, name: str, claim: str, node: Machine) -> bool:
        volume, asked = self._volumes[name], self._claims[claim]
        if "claimRef" in volume["spec"] or volume["status"]["phase"] != "Available":
            return False
        return self._fits(name, asked) and _reaches(volume, node)

    def _fits(self, name: str, claim: Any) -> bool:
        volume, asked = self._volumes[name]["spec"], claim["spec"]
        wanted = asked.get("selector", {}).get("matchLabels", {}).items()
        if "deletionTimestamp" in self._volumes[name]["metadata"]:
            return False
        return (
            volume["storageClassName"] == (asked.get("storageClassName") or "")
            and volume.get("volumeMode", "Filesystem") == asked.get("volumeMode", "Filesystem")
            and {*asked.get("accessModes", ())} <= {*volume["accessModes"]}
            and wanted <= self._volumes[name]["metadata"]["labels"].items()
            and _bytes(volume["capacity"]["storage"])
            >= _bytes(asked.get("resources", {}).get("requests", {}).get("storage", "0Gi"))
        )

    def _kept(self, volume: Any, claim: Any) -> bool:
        of = volume["spec"].get("claimRef")
        return (
            bool(of) and of["name"] == claim["metadata"]["name"] and of.get("uid") in (None, claim["metadata"]["uid"])
        )

    def _can_be_made(self, claim: str, node: Machine) -> bool:
        of = self._classes[self._claims[claim]["spec"]["storageClassName"]]
        terms = of.get("allowedTopologies", ())
        fits = not terms or any(
            all(node.labels.get(each["key"]) in each["values"] for each in term["matchLabelExpressions"])
            for term in terms
        )
        return of["provisioner"] != _NO_PROVISIONER and fits

    def doc(self, volume: str) -> Any:
        """Return a volume; None where it is not there."""
        if not volume.startswith(_MADE):
            return self._volumes.get(volume)
        zone = volume.rpartition(" in ")[2]
        affinity = {}
        if zone:
            condition = {"key": ZONE, "operator": "In", "values": [zone]}
            affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [condition]}]}}}
        return {"metadata": {"name": volume, "labels": {}}, "spec": affinity}


def _reaches(volume: Any, node: Machine) -> bool:
    required = volume["spec"].get("nodeAffinity", {}).get("required")
    return required is None or matches_terms(required["nodeSelectorTerms"], node.labels)


def _in_zone(volume: Any, node: Machine) -> bool:
    if not _TOPOLOGY.keys() & node.labels.keys():
        return True
    for key, values in volume["metadata"].get("labels", {}).items():
        if key in _TOPOLOGY and node.labels.get(key, node.labels.get(_TOPOLOGY[key])) not in values.split("__"):
            return False
    return True


def _bytes(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:]]
