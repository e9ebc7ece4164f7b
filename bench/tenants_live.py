"""What an honest tenant notices of a hostile one: `cagrpc serve` beside a real control plane, with simulated machines,
volumes, resource claims, quotas and consolidation.

    python -m bench.tenants_live [--minutes 10] [--drive plan|assist] [--autoscaler PROGRAM] [--verbose]

For so many minutes the honest tenant is alone, and for as many beside a hostile one, who does at once what
`bench.hostile` does one by one: whatever a namespace can hold, as many silent connections as there may be, and a flood
of header frames each minute. Each cycle creates a Deployment, a pod whose volume is in a zone, a pod that claims a
device (not with `assist`: the autoscaler reads no claims unless told to) and a ProvisioningRequest, and deletes them
again. It needs the native front (`make native`). Printed are the seconds until the last node of the pods was released
(what comes after that is kube-scheduler's), until the pods run, until the request is Provisioned, and until
consolidation has removed the nodes. The exit code is 1 where a mean beside the hostile tenant is more than twice that
without, or the server's memory grows by more than 100 MiB.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Any, Self

from bench.hostile.cluster import pod
from bench.hostile.meter import cpu_seconds, memory_mib
from bench.hostile.reading import anti_affinity
from bench.hostile.sockets import Flood, Silence
from bench.hostile.solving import KINDS
from bench.live import Seen, watching
from bench.real_cluster import measured, real_autoscaler
from cagrpc.api.encoding.messages import message_to_dict
from cagrpc.api.gen import kubernetes_pb2 as k8s
from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import Cluster, pod_spec
from tests.support.controlplane.consolidating import ON
from tests.support.controlplane.dra_driver import dra_driver
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.provisioning import PlaneRequests
from tests.support.devices import DRIVER, claim_spec, device_class
from tests.support.storage import ZONE, claim, volume

MOST_TIMES, MOST_MIB = 2.0, 100.0
CYCLE_SECONDS = 60.0
PATIENCE_SECONDS = 300.0
_APPS, _DRA, _POLICY = "apis/apps/v1", "apis/resource.k8s.io/v1", "apis/policy/v1"
_REPLICAS, _CPU = 4, "1500m"
_DEVICES = 2
_DIFFERENT = 150
"""Pods, once, of as many sizes."""
_OF_A_REQUEST = 10
"""More than there is room for."""
_TERMS, _OF_A_KIND, _LINKS, _BUDGETS, _REQUESTS, _SHARING = 80, 20, 200, 100, 20, 50
_CONNECTIONS, _FLOODS, _FLOOD_SECONDS = 300, 4, 5.0
_OF_HONEST = {"key": "example.com/tenant", "value": "honest", "effect": "NoSchedule"}
_HONEST_POOLS = ("small", "large", "devices")
_PROVISIONERS: list[dict[str, Any]] = [
    {
        "name": "honest",
        "taints": [_OF_HONEST],
        "node_groups": [
            group("small", "4", "16Gi", 0.2, labels={ZONE: "a"}),
            group("large", "8", "32Gi", 0.45, labels={ZONE: "b"}),
            group("devices", "16", "64Gi", 1.5, labels={ZONE: "a"}),
        ],
    },
    {"name": "others", "limits": {"cpu": 200}, "node_groups": [group("others", "16", "64Gi", 0.8)]},
]
"""The honest tenant's nodes are tainted, so that the other tenant's pods do not keep them."""
_TOLERATES: dict[str, Any] = {"tolerations": [{**_OF_HONEST, "operator": "Equal"}]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="alone, and as many beside the hostile tenant")
    parser.add_argument("--drive", choices=("plan", "assist"), default="plan")
    parser.add_argument("--autoscaler", type=Path, help="the program of an unmodified cluster-autoscaler, for `assist`")
    parser.add_argument("--verbose", action="store_true", help="the server's log")
    options = parser.parse_args()
    if options.drive == "assist" and options.autoscaler is None:
        parser.error("--drive assist needs --autoscaler")
    if find_spec("cagrpc_native") is None:
        parser.error("the native front is not installed, without which floods of frames fill memory: make native")
    return measured(lambda live: run(live, options), verbose=options.verbose)


def run(live: Live, options: argparse.Namespace) -> int:
    """Return the exit code."""
    requests = PlaneRequests(live)
    requests.template("honest", {"cpu": "3", "memory": "1Gi"}, **_TOLERATES)
    live.configure(
        _PROVISIONERS,
        drive=options.drive,
        devices=[{"driver": DRIVER, "count": _DEVICES, "node_groups": ["devices"]}],
        consolidation=ON,
        namespace=live.cluster.namespace,
    )
    live.start()
    with ExitStack() as stack:
        stack.callback(requests.close)
        stack.callback(live.close)
        if options.autoscaler is not None:
            stack.enter_context(real_autoscaler(live, options.autoscaler))
        stack.enter_context(dra_driver(live.cluster.plane, _devices_of, [device_class()]))
        seen = stack.enter_context(watching(live.cluster.plane))
        honest = _Honest(requests, seen, claims=options.drive == "plan")
        honest.warm_up()
        honest.cycle()  # with what a first time costs
        alone = honest.for_seconds(60.0 * options.minutes)
        print(f"alone                    {alone}", flush=True)
        with _Hostile(live):
            beside = honest.for_seconds(60.0 * options.minutes)
        print(f"beside a hostile tenant  {beside}", flush=True)
        wrong = list(beside.worse_than(alone))
    print(*(wrong or ["nothing is worse than it may be"]), sep="\n")
    return 1 if wrong else 0


def _devices_of(node: Any) -> list[dict[str, Any]]:
    if node["metadata"]["labels"].get("pool") != "devices":
        return []
    return [{"name": f"gpu-{number}"} for number in range(_DEVICES)]


@dataclass(slots=True)
class Waits:
    """Of one half, in seconds, and the server's memory at its peak."""

    nodes: list[float] = field(default_factory=list)
    pods: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    consolidation: list[float] = field(default_factory=list)
    peak_mib: float = 0.0

    def __str__(self) -> str:
        each = (f"{name} {mean(waits):.1f} (at most {max(waits):.1f})" for name, waits in self._all())
        return f"{len(self.pods)} cycles, seconds: {', '.join(each)}; {self.peak_mib:.0f} MiB"

    def worse_than(self, other: Waits) -> Iterator[str]:
        for (name, mine), (_, usual) in zip(self._all(), other._all(), strict=True):
            if mean(mine) > MOST_TIMES * mean(usual):
                yield f"{name}: {mean(mine) / mean(usual):.1f} times the usual {mean(usual):.1f} s"
        if self.peak_mib > other.peak_mib + MOST_MIB:
            yield f"memory: {self.peak_mib - other.peak_mib:.0f} MiB more"

    def _all(self) -> Sequence[tuple[str, list[float]]]:
        return (
            ("nodes", self.nodes),
            ("pods", self.pods),
            ("requests", self.requests),
            ("consolidation", self.consolidation),
        )


class _Honest:
    """Creates, waits and deletes."""

    def __init__(self, requests: PlaneRequests, seen: Seen, *, claims: bool) -> None:
        self._live, self._requests, self._claims, self._number = requests.live, requests, claims, 0
        self._seen = seen
        admin, path = self._live.cluster.admin, self._live.cluster.path
        admin.create(path("resourcequotas"), {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1000"}}})
        admin.create(
            path("resourceclaimtemplates", api=_DRA), {"metadata": {"name": "one"}, "spec": {"spec": claim_spec(1)}}
        )

    def warm_up(self) -> None:
        """Have the server plan what is large enough for compiled kernels, which it keeps in memory from then on."""
        cluster = self._live.cluster
        for number in range(_DIFFERENT):
            cluster.create_pod(f"warm-{number}", {"cpu": f"{100 + 7 * number}m", "memory": "1Gi"}, **_TOLERATES)
        self._live.wait_for_running(_DIFFERENT, seconds=PATIENCE_SECONDS)
        cluster.admin.delete(cluster.path("pods"), gracePeriodSeconds=0)
        self._live.wait_for(self._is_empty, "the nodes are gone", seconds=PATIENCE_SECONDS)

    def for_seconds(self, seconds: float) -> Waits:
        found, until = Waits(), time.monotonic() + seconds
        pid = self._live.serving.process.pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        while time.monotonic() < until:
            began, used = time.monotonic(), cpu_seconds(pid)
            waited = self.cycle()
            kinds = (found.nodes, found.pods, found.requests, found.consolidation)
            for waits, wait in zip(kinds, waited, strict=True):
                waits.append(wait)
            cpu = cpu_seconds(pid) - used
            each = ", ".join(f"{wait:.1f}" for wait in waited)
            used_up = f"{cpu:.1f} s of CPU, {memory_mib(pid):.0f} MiB"
            print(f"  nodes, pods, request and consolidation after {each} s; {used_up}", flush=True)
            time.sleep(max(0.0, began + CYCLE_SECONDS - time.monotonic()))
        found.peak_mib = memory_mib(pid, "VmHWM")
        return found

    def cycle(self) -> tuple[float, float, float, float]:
        """Return the seconds until its pods' nodes are released, until they run, until its request is provisioned, and
        until the nodes are gone."""
        self._number += 1
        cluster, name = self._live.cluster, f"honest-{self._number}"
        began = time.monotonic()
        cluster.create_deployment(name, _REPLICAS, {"cpu": _CPU, "memory": "1Gi"}, **_TOLERATES)
        self._with_volume(f"{name}-volume")
        if self._claims:
            of_template = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
            uses = {"resourceClaims": of_template, **_TOLERATES}
            cluster.create_pod(f"{name}-device", {"cpu": "1", "memory": "1Gi"}, **uses)
        count = _REPLICAS + 1 + self._claims
        self._live.wait_for(lambda: len(self._running(name)) == count, f"{count} pods run", seconds=PATIENCE_SECONDS)
        pods = time.monotonic() - began
        used = {each["spec"]["nodeName"] for each in self._running(name)}
        self._live.wait_for(lambda: used <= self._seen.lifted.keys(), "the watch has shown their nodes")
        nodes = max(self._seen.lifted[node] for node in used) - began
        began = time.monotonic()
        self._requests.create(name, {"honest": _OF_A_REQUEST})
        self._requests.wait_for(name, "Provisioned", seconds=PATIENCE_SECONDS)
        request = time.monotonic() - began
        began = time.monotonic()
        self._requests.delete(name)
        cluster.admin.delete(cluster.path("deployments", name, api=_APPS))
        cluster.admin.delete(cluster.path("pods"), gracePeriodSeconds=0)
        cluster.admin.delete(cluster.path("persistentvolumeclaims"))
        cluster.admin.delete("/api/v1/persistentvolumes")
        self._live.wait_for(self._is_empty, "the nodes are gone", seconds=PATIENCE_SECONDS)
        return nodes, pods, request, time.monotonic() - began

    def _running(self, name: str) -> list[Any]:
        """Of this cycle; a ReplicaSet that is being deleted may have made others."""
        return [
            each
            for each in self._live.cluster.pods()
            if f"{each['metadata']['name']}-".startswith(f"{name}-") and each["status"]["phase"] == "Running"
        ]

    def _is_empty(self) -> bool:
        pools = self._live.pools()
        return not any(pools[pool] for pool in _HONEST_POOLS)

    def _with_volume(self, name: str) -> None:
        """Create a pod of a claim that is bound in zone b."""
        admin, cluster = self._live.cluster.admin, self._live.cluster
        there = volume(f"pv-{name}", "b", driver="disks.example.com", class_name="zonal")
        there["spec"]["claimRef"] = {"namespace": cluster.namespace, "name": name}
        there.pop("status")
        admin.create("/api/v1/persistentvolumes", there)
        wanted = claim(name, f"pv-{name}", "zonal", bound=False)
        admin.create(cluster.path("persistentvolumeclaims"), {"metadata": {"name": name}, "spec": wanted["spec"]})
        uses = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}], **_TOLERATES}
        cluster.create_pod(name, {"cpu": "1", "memory": "1Gi"}, **uses)


class _Hostile:
    """A namespace with whatever it can hold, changed all the time, and connections that say nothing."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._cluster = Cluster(live.cluster.plane, f"{live.cluster.namespace}-hostile")
        self._api: Api = live.cluster.plane.api()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failed: Exception | None = None
        self._refused = 0
        self._taken = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        print(
            f"the API server took {self._taken} objects of the hostile tenant and refused {self._refused}", flush=True
        )
        for resource, api in (
            ("provisioningrequests", "apis/autoscaling.x-k8s.io/v1"),
            ("replicasets", _APPS),
            ("pods", "api/v1"),
        ):
            self._api.delete(self._cluster.path(resource, api=api), gracePeriodSeconds=0)
        self._api.delete(f"/api/v1/namespaces/{self._cluster.namespace}")
        self._api.close()
        if self._failed is not None and error is None:
            raise self._failed

    def _run(self) -> None:
        try:
            serving = self._live.serving
            with Silence(serving, _CONNECTIONS), Silence(serving, _CONNECTIONS, to="expander"):
                self._fill()
                turn = 0
                while not self._stopped.wait(5.0):
                    turn += 1
                    self._change(turn)
        except Exception as error:  # noqa: BLE001 - it is raised where the context ends
            self._failed = error

    # ---- what it creates once

    def _fill(self) -> None:
        for make in (self._hard_to_plan, self._terms, self._claims, self._sharing, self._workloads, self._others):
            if self._stopped.is_set():
                return
            make()

    def _hard_to_plan(self) -> None:
        for kind, (_, count, made) in KINDS.items():
            for number in range(_OF_A_KIND):
                self._pod(f"{kind}-{number}", made(number, count, _OF_A_KIND))

    def _terms(self) -> None:
        for number in range(2 * _OF_A_KIND):
            unlike = (
                k8s.LabelSelectorRequirement(key="k", operator="NotIn", values=[f"v{number}-{term}"])
                for term in range(_TERMS)
            )
            affinity = anti_affinity(
                k8s.PodAffinityTerm(topologyKey="a", labelSelector=k8s.LabelSelector(matchExpressions=[each]))
                for each in unlike
            )
            self._pod(f"terms-{number}", pod(labels={"k": f"{number}"}, affinity=affinity))

    def _claims(self) -> None:
        ones = ",".join(["1"] * 5_000)
        long = [f"{number} > 0 && size([{ones}]) > 0" for number in range(100)]
        pattern = "||".join(f'"".matches("\\\\pL{{0,300}}{each}x")' for each in range(60))
        for name, expressions in (("long", long), ("patterns", [pattern])):
            selectors = [{"cel": {"expression": each}} for each in expressions]
            requests = [
                {"name": f"r{at}", "exactly": {"deviceClassName": "gpu", "selectors": selectors[at : at + 32]}}
                for at in range(0, len(selectors), 32)
            ]
            self._create(
                "resourceclaims", {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}, _DRA
            )
            self._pod(f"claim-{name}", pod(), resourceClaims=[{"name": "c", "resourceClaimName": name}])

    def _sharing(self) -> None:
        wanted = claim("shared", class_name="zonal")
        self._create("persistentvolumeclaims", {"metadata": {"name": "shared"}, "spec": wanted["spec"]})
        uses = [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]
        for number in range(_SHARING):
            self._pod(f"shared-{number}", pod(), volumes=uses)

    def _workloads(self) -> None:
        """ReplicaSets that own each other below a quota that lets none of them have pods."""
        here = len(self._cluster.pods())
        self._create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": f"{here + 60}"}}})
        owner: dict[str, Any] | None = None
        for number in range(_LINKS):
            body = self._replica_set(f"chain-{number}", 2)
            if owner:
                body["metadata"]["ownerReferences"] = [owner]
            made = self._create("replicasets", body, _APPS)
            if made:
                uid = made["metadata"]["uid"]
                owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"chain-{number}", "uid": uid}
                owner["controller"] = True
        self._create("replicasets", self._replica_set("grows", 1), _APPS)

    def _replica_set(self, name: str, replicas: int) -> dict[str, Any]:
        labels = {"of": name}
        template = {"metadata": {"labels": labels}, "spec": pod_spec({"cpu": "1"})}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        return {"metadata": {"name": name}, "spec": spec}

    def _others(self) -> None:
        for number in range(_BUDGETS):
            values = ["v", *(f"{number}-{each}" for each in range(30))]
            selector = {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": values}]}
            self._create(
                "poddisruptionbudgets",
                {"metadata": {"name": f"b{number}"}, "spec": {"maxUnavailable": 1, "selector": selector}},
                _POLICY,
            )
        template = {"metadata": {"name": "none"}, "template": {"spec": pod_spec({"cpu": "900"})}}
        self._create("podtemplates", template)
        for number in range(_REQUESTS):
            self._request(number)

    def _request(self, number: int) -> None:
        sets = [{"podTemplateRef": {"name": "none"}, "count": 2_000}]
        spec = {"provisioningClassName": "atomic-scale-up.kubernetes.io", "podSets": sets}
        self._create("provisioningrequests", {
            "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
            "metadata": {"name": f"r{number}"}, "spec": spec,
        }, "apis/autoscaling.x-k8s.io/v1")  # fmt: skip

    # ---- what it changes

    def _change(self, turn: int) -> None:
        self._again("nowhere", pod(), nodeSelector={"no": "where"}, every=12, turn=turn)
        self._again(
            "claim-long", pod(), resourceClaims=[{"name": "c", "resourceClaimName": "long"}], every=3, turn=turn
        )
        self._again("terms-0", pod(labels={"k": f"{turn}"}), every=1, turn=turn)
        with suppress(ApiRefusal):
            path = self._cluster.path("replicasets", "grows", api=_APPS)
            self._api.merge(path, {"spec": {"replicas": 1 + turn % 3}})
        if turn % 12 == 0:
            until = time.monotonic() + _FLOOD_SECONDS
            floods = [Flood(self._live.serving, until) for _ in range(_FLOODS)]
            for each in floods:
                each.start()
            for each in floods:
                each.join()

    def _again(self, name: str, made: k8s.Pod, *, every: int, turn: int, **spec: Any) -> None:
        """Make a pod anew."""
        if turn % every == 0:
            self._api.delete(self._cluster.path("pods", name), gracePeriodSeconds=0)
            self._pod(name, made, **spec)

    # ----

    def _pod(self, name: str, made: k8s.Pod, **spec: Any) -> None:
        found = message_to_dict(made)
        containers = [
            {"name": f"c{number}", "image": "example.com/none", **each}
            for number, each in enumerate(found["spec"].pop("containers", [{}]))
        ]
        for each in containers:
            for port in each.get("ports", ()):
                port.setdefault("containerPort", port["hostPort"])
            wanted = each.get("resources", {}).get("requests", {})
            limits = {resource: amount for resource, amount in wanted.items() if "/" in resource}
            if limits:
                each["resources"]["limits"] = limits
        for number, spread in enumerate(found["spec"].get("topologySpreadConstraints", ())[2:]):
            spread["topologyKey"] = f"t{number}"  # the API server wants each key once
        metadata = {"name": name, "labels": found["metadata"].get("labels", {})}
        self._create("pods", {"metadata": metadata, "spec": {**found["spec"], "containers": containers, **spec}})

    def _create(self, resource: str, body: dict[str, Any], api: str = "api/v1") -> Any:
        if self._stopped.is_set():
            return None
        try:
            made = self._api.create(self._cluster.path(resource, api=api), body)
        except ApiRefusal as refusal:
            self._refused += 1
            if self._refused < 4:
                print(f"refused: {resource} {body['metadata']['name']}: {str(refusal)[:300]}", flush=True)
            return None
        self._taken += 1
        return made


if __name__ == "__main__":
    sys.exit(main())
