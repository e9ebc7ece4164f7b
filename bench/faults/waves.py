"""What runs in the cluster of a campaign: Deployments, gangs over two node groups, and ProvisioningRequests with their
pods, in waves. They are to be there as somebody's repository says: what a restored backup lacks is made again, and
what it brings back is deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Any

import urllib3

from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.cluster import Cluster, pod_spec
from tests.support.controlplane.live import group
from tests.support.controlplane.provisioning import API, ATOMIC, CONSUMES, OF_CLASS

PROVISIONERS = [
    {
        "name": "all",
        "node_groups": [
            group("web", "4", "8Gi", 0.2),
            group("a", "4", "8Gi", 0.2),
            group("b", "4", "8Gi", 0.3, labels={"role": "b"}),
            group("c", "4", "8Gi", 0.9, labels={"role": "b"}),
            group("jobs", "4", "8Gi", 0.25),
        ],
    }
]
HEAD, SMALL = {"cpu": "3", "memory": "1Gi"}, {"cpu": "1500m", "memory": "1Gi"}
OWNER = "campaign"
_DEPLOYMENTS = "apis/apps/v1"
_OVER = {"CapacityRevoked", "BookingExpired", "Failed"}
"""Conditions of ProvisioningRequests with which nothing comes of them any more."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Something that somebody wants."""

    name: str
    kind: str
    """`web`, `gang` or `request`."""
    size: int
    """Pods; of a gang in each of its halves."""

    @property
    def pods(self) -> int:
        return 2 * self.size if self.kind == "gang" else self.size


class Waves:
    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._number = 0
        self.wanted: dict[str, Wave] = {}
        self.unwanted: dict[str, Wave] = {}
        """Those that were wanted once."""
        self.made_anew = 0
        """ProvisioningRequests that had ended without all their pods, as a node was lost: their users make others."""

    def prepare(self) -> None:
        template = {"metadata": {"name": "head"}, "template": {"spec": pod_spec(HEAD, nodeSelector={"pool": "jobs"})}}
        self._cluster.admin.ensure(self._cluster.path("podtemplates"), template)

    def turn(self, come: int, *, go: float) -> None:
        """Let so many new ones come, and of the others this share go."""
        for name in [each for each in self.wanted if self._rng.random() < go]:
            self.unwanted[name] = self.wanted.pop(name)
        for _ in range(come):
            self._number += 1
            kind = self._rng.choice(("web", "web", "gang", "request"))
            size = self._rng.randint(2, 8) if kind == "web" else self._rng.randint(1, 3)
            wave = Wave(f"{kind}-{self._number}", kind, size)
            self.wanted[wave.name] = wave

    def apply(self) -> bool:
        """Make and delete what differs; return whether the API server took all of it."""
        done = True
        for wave in (*self.wanted.values(), *self.unwanted.values()):
            try:
                if wave.name in self.wanted:
                    self._make(wave)
                else:
                    self._delete(wave)
            except (ApiRefusal, urllib3.exceptions.HTTPError):
                done = False
        return done

    def forget_unwanted(self) -> None:
        """Called when nothing of them is left, and no backup has them."""
        self.unwanted.clear()

    def _make(self, wave: Wave) -> None:
        cluster, admin = self._cluster, self._cluster.admin
        labels = {OWNER: wave.name}
        if wave.kind == "web":
            spec = pod_spec(SMALL, nodeSelector={"pool": "web"})
            template = {"metadata": {"labels": labels}, "spec": spec}
            body = {"replicas": wave.size, "selector": {"matchLabels": labels}, "template": template}
            admin.ensure(cluster.path("deployments", api=_DEPLOYMENTS), {"metadata": {"name": wave.name}, "spec": body})
            return
        conditions: AbstractSet[str] = set()
        if wave.kind == "request":
            self._make_request(wave)
            conditions = self._conditions(wave)
            if conditions & _OVER:
                self.made_anew += 1
                self._delete(wave)
                return
        for name, metadata, spec in self._pods(wave, provisioned="Provisioned" in conditions):
            body = {"metadata": {"name": name, **metadata, "labels": {**labels, **metadata.get("labels", {})}}}
            admin.ensure(cluster.path("pods"), {**body, "spec": spec})

    def _make_request(self, wave: Wave) -> None:
        sets = [{"podTemplateRef": {"name": "head"}, "count": wave.size}]
        spec = {"provisioningClassName": ATOMIC, "podSets": sets, "parameters": {}}
        kind = {"apiVersion": API.removeprefix("apis/"), "kind": "ProvisioningRequest"}
        path = self._cluster.path("provisioningrequests", api=API)
        self._cluster.admin.ensure(path, {**kind, "metadata": {"name": wave.name}, "spec": spec})

    def _pods(self, wave: Wave, *, provisioned: bool) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
        """Yield name, metadata and spec of those without a controller."""
        if wave.kind == "gang":
            of = {"scheduling.x-k8s.io/pod-group": wave.name}
            metadata = {"labels": of, "annotations": {"cagrpc.io/gang-min-count": str(wave.pods)}}
            for role, selector in (("a", {"pool": "a"}), ("b", {"role": "b"})):
                for number in range(wave.size):
                    yield f"{wave.name}-{role}-{number}", metadata, pod_spec(HEAD, nodeSelector=selector)
        elif provisioned:
            metadata = {"annotations": {CONSUMES: wave.name, OF_CLASS: ATOMIC}}
            for number in range(wave.size):
                yield f"{wave.name}-{number}", metadata, pod_spec(HEAD, nodeSelector={"pool": "jobs"})

    def _conditions(self, wave: Wave) -> AbstractSet[str]:
        """Return which conditions of a ProvisioningRequest are true."""
        found = self._cluster.admin.get(self._cluster.path("provisioningrequests", wave.name, api=API))
        conditions = found.get("status", {}).get("conditions") or ()
        return {each["type"] for each in conditions if each["status"] == "True"}

    def _delete(self, wave: Wave) -> None:
        cluster, admin = self._cluster, self._cluster.admin
        if wave.kind == "web":
            path = cluster.path("deployments", wave.name, api=_DEPLOYMENTS)
            admin.delete(path, propagationPolicy="Background")
        if wave.kind == "request":
            admin.delete(cluster.path("provisioningrequests", wave.name, api=API))
        if wave.kind != "web":
            for pod in admin.items(cluster.path("pods"), labelSelector=f"{OWNER}={wave.name}"):
                admin.delete(cluster.path("pods", pod["metadata"]["name"]))

    def short_of(self, pods: list[Any]) -> Counter[str]:
        """Return how many pods each wanted wave lacks that run."""
        running = Counter(
            pod["metadata"]["labels"].get(OWNER, "")
            for pod in pods
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        )
        return +Counter({name: wave.pods - running[name] for name, wave in self.wanted.items()})
