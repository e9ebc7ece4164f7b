"""Karpenter's core as a real process beside the control plane, over kwok machines of which there may be too few
(`modules/karpenter`). Its Nodes are made Ready by `kubelets`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.binaries import KARPENTER, source
from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.deployed import apply, wait_until_served
from tests.support.controlplane.kubelets import kubelets
from tests.support.controlplane.live import Live
from tests.support.controlplane.processes import Process, free_port, wait_for

CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
POOLS = "/apis/karpenter.sh/v1/nodepools"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
KWOK = "kwok.x-k8s.io/node=fake"
"""Selects its Nodes."""
TYPE = "c-4x-amd64-linux"
ZONES = ("test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d")
SHORT = "InsufficientInstanceCapacity: there is none of it left"
_CRDS = ("pkg/apis/crds/karpenter.sh_*.yaml", "kwok/apis/crds/*.yaml")


class Karpenter:
    """Not running before `start`; the same stock, cluster and log for every process."""

    def __init__(self, cluster: Cluster, program: Path, directory: Path) -> None:
        self.cluster = cluster
        self._admin = cluster.plane.admin
        self._program = program
        self._log = directory / "karpenter.log"
        self._stock = directory / "stock.json"
        self._launches = directory / "launches.jsonl"
        self._types: Path | None = None
        self._process: Process | None = None
        self.stock({})
        self._install()

    def _install(self) -> None:
        root = source(KARPENTER, "sigs.k8s.io/karpenter")
        definitions = [
            document
            for pattern in _CRDS
            for path in sorted(root.glob(pattern))
            for document in yaml.safe_load_all(path.read_text())
            if document
        ]
        for definition in definitions:
            apply(self._admin, definition)
        for definition in definitions:
            wait_until_served(self._admin, definition)
        self.node_class("default")

    # ---- the process

    def start(self) -> None:
        """Healthy when this returns."""
        health, metrics = free_port(), free_port()
        self._process = Process(
            [
                self._program,
                "--disable-leader-election=true",
                f"--health-probe-port={health}",
                f"--metrics-port={metrics}",
                "--kube-client-qps=1000",
                "--kube-client-burst=2000",
                *([f"--instance-types-file-path={self._types}"] if self._types else []),
            ],
            self._log,
            {
                "KUBECONFIG": str(self.cluster.plane.kubeconfig()),
                "CLOUD_STOCK": str(self._stock),
                "CLOUD_LOG": str(self._launches),
                "SYSTEM_NAMESPACE": self.cluster.namespace,
            },
        )
        started = self._lines("Starting workers")
        wait_for(
            lambda: self._lines("Starting workers") > started, "Karpenter's controllers run", process=self._process
        )

    def stop(self) -> None:
        """Kill it, as a machine that loses power."""
        if self._process is not None:
            self._process.stop(kill=True)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _lines(self, words: str) -> int:
        return self._log.read_text(errors="replace").count(words) if self._log.exists() else 0

    # ---- the cloud

    def stock(self, offerings: Mapping[str, int | Mapping[str, Any]]) -> None:
        """What there is from now on of an offering, `type/zone/capacity type`: so many machines, or an answer in full
        (`stock`, `message`); of all others, any number."""
        answers = {
            offering: {"stock": has, "message": SHORT} if isinstance(has, int) else dict(has)
            for offering, has in offerings.items()
        }
        new = self._stock.with_suffix(".new")
        new.write_text(json.dumps(answers))
        new.rename(self._stock)

    def offer(self, types: Mapping[str, Mapping[str, str]], prices: Mapping[str, float] | None = None) -> None:
        """From now on there are these instance types and no others: what pods may use of each, in every zone; `prices`
        in US dollars per hour, 1 of those that are not there."""
        document: list[dict[str, Any]] = [
            {
                "name": name,
                "architecture": "amd64",
                "operatingSystems": ["linux"],
                "resources": {
                    **resources,
                    "cpu": f"{int(resources['cpu'].removesuffix('m')) + 100}m",  # kwok takes 100m and 10Mi for itself
                    "memory": f"{int(resources['memory'].removesuffix('Mi')) + 10}Mi",
                },
                "offerings": [
                    {
                        "Price": (prices or {}).get(name, 1.0),
                        "Available": True,
                        "Requirements": [
                            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
                        ],
                    }
                    for zone in ZONES
                ],
            }
            for name, resources in types.items()
        ]
        self._types = self._stock.with_name("types.json")
        self._types.write_text(json.dumps(document))
        self.restart()

    def launches(self) -> list[dict[str, Any]]:
        """What was asked of the cloud: `at` (epoch seconds), `claim`, `offering`, `error` (empty where it launched)."""
        if not self._launches.exists():
            return []
        return [json.loads(line) for line in self._launches.read_text().splitlines()]

    def node_class(self, name: str, *, ready: bool = True) -> None:
        document = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": name}}
        self._admin.ensure(CLASSES, {**document, "spec": {"nodeRegistrationDelay": "0s"}})
        condition = {
            "type": "Ready",
            "status": str(ready),
            "reason": "Ready" if ready else "NotReady",
            "message": "" if ready else "it has no subnets",
            "lastTransitionTime": "2026-11-01T00:00:00Z",
        }
        self._admin.merge(f"{CLASSES}/{name}/status", {"status": {"conditions": [condition]}})

    # ---- the cluster

    def claims(self) -> list[Any]:
        return self._admin.items(CLAIMS)

    def nodes(self) -> list[Any]:
        return self._admin.items(NODES, labelSelector=KWOK)

    def node_pool(self, name: str, *, frozen: bool = False, **spec: Any) -> None:
        """A NodePool of every type there is; frozen as the guide says, or alive."""
        self._admin.create(
            POOLS,
            {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodePool",
                "metadata": {"name": name},
                "spec": {
                    "template": {"spec": {"nodeClassRef": NODE_CLASS, "requirements": []}},
                    **(frozen_fields() if frozen else {"disruption": {"consolidateAfter": "0s"}}),
                    **spec,
                },
            },
        )

    def change_pool(self, name: str, spec: Mapping[str, Any]) -> None:
        self._admin.merge(f"{POOLS}/{name}", {"spec": dict(spec)})

    def tidy(self) -> None:
        """Leave nothing of it: the process ends first, and what waits for it goes without it."""
        self.stop()
        for path in (POOLS, CLAIMS, NODES, CLASSES):
            self._admin.delete(path)
        for path in (CLAIMS, NODES):
            self._free(path, [each["metadata"]["name"] for each in self._admin.items(path)])
            wait_for(lambda path=path: not self._admin.any(path), f"nothing is left of {path}")  # type: ignore[misc]

    def _free(self, path: str, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._admin.merge(f"{path}/{name}", {"metadata": {"finalizers": None}})
            except ApiRefusal as refused:
                if refused.status != 404:
                    raise


def frozen_fields() -> dict[str, Any]:
    """What keeps a NodePool from launching and from disrupting."""
    return {"limits": {"cpu": "0"}, "disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]}}


def offering(instance_type: str = TYPE, zone: str = ZONES[0], capacity_type: str = "on-demand") -> str:
    return f"{instance_type}/{zone}/{capacity_type}"


def group(name: str, instance_type: str = TYPE, zone: str = ZONES[0], **more: Any) -> dict[str, Any]:
    """A node group of the configuration, of one of kwok's types; what stands in `labels` names it as its pool."""
    cpus = int(instance_type.split("-")[1].removesuffix("x"))
    per_cpu = {"c": 2, "s": 4, "m": 8}[instance_type[0]]
    return {
        "id": name,
        "instance_type": instance_type,
        "zone": zone,
        "capacity_type": "on-demand",
        "allocatable": {"cpu": f"{1000 * cpus - 100}m", "memory": f"{1024 * cpus * per_cpu - 10}Mi", "pods": 110},
        "price_usd_per_hour": 0.1 * cpus,
        "labels": {"pool": name, **more.pop("labels", {})},
        **more,
    }


def configure(
    live: Live,
    provisioners: list[dict[str, Any]],
    planner: Mapping[str, Any] | None = None,
    kubeconfig: Path | None = None,
    **more: Any,
) -> None:
    """Serve these by Karpenter, as an administrator or with the rights of this kubeconfig."""
    live.node_selector = KWOK
    live.write(
        {
            "backend": {"karpenter": {"node_class": NODE_CLASS, "termination_grace_period": "5s"}},
            "provisioners": provisioners,
            "drive": "plan",
            "kubernetes": {"kubeconfig": str(kubeconfig or live.cluster.plane.kubeconfig()), "journal": "sqlite"},
            "planner": {"idle": "1s", "window": "1m", **(planner or {})},
            **more,
        }
    )


@contextmanager
def running_karpenter(cluster: Cluster, program: Path, directory: Path) -> Iterator[Karpenter]:
    with ExitStack() as undo:
        karpenter = Karpenter(cluster, program, directory)
        undo.callback(karpenter.tidy)
        undo.enter_context(kubelets(cluster.plane, KWOK))
        karpenter.start()
        yield karpenter
