"""Random small clusters with pods that have volumes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.scheduler.cluster import ATTACHABLE, HOSTNAME, World
from tests.support.storage import EBS, LOCAL, ZONE, attachment, claim, csi_node, storage_class, volume

_ZONES = "ab"
_SIZES = ("1Gi", "2Gi", "3Gi")
_MODES = (("ReadWriteOnce",), ("ReadWriteOnce",), ("ReadWriteMany",), ("ReadWriteOncePod",))


def pod(name: str, cpu: int = 1, node: str = "", created: int = 0, **spec: Any) -> Any:
    containers = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": str(cpu)}}}]
    stamp = f"2026-01-01T00:00:{created:02}Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": stamp},
        "spec": {"containers": containers, **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": "Running" if node else "Pending"},
    }


def node(name: str, cpu: int, **labels: str) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name, **labels}},
        "status": {"allocatable": {"cpu": str(cpu), "memory": "32Gi", "pods": "110"}},
    }


def group(name: str, cpu: int, price: float, most: int, labels: dict[str, str], **allocatable: Any) -> Any:
    has = {"cpu": str(cpu), "memory": "32Gi", "pods": 110, **allocatable}
    return {"id": name, "allocatable": has, "price_usd_per_hour": price, "labels": labels, "max_size": most}


class _Drawn:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.objects: list[Any] = []
        self.nodes: dict[str, str] = {}
        """Zones of those that stand."""

    def one_in(self, number: int) -> bool:
        return self.draw(st.integers(1, number)) == number

    def any(self, *of: Any) -> Any:
        return self.draw(st.sampled_from(of))

    def add(self, each: Any) -> Any:
        self.objects.append(each)
        return each

    def standing(self) -> None:
        for number in range(self.draw(st.integers(0, 2))):
            name, zone = f"n{number}", self.any(*_ZONES, *_ZONES, "")
            self.nodes[name] = zone
            self.add(node(name, self.any(1, 2, 3, 4), **({ZONE: zone} if zone else {})))
            if not self.one_in(3):
                self.add(csi_node(name, count=self.any(None, 1, 2, 2)))

    def groups(self) -> tuple[Any, ...]:
        found = []
        for zone in _ZONES[: self.draw(st.integers(1, 2))]:
            limit = {} if self.one_in(3) else {f"{ATTACHABLE}{EBS}": self.any(1, 2)}
            price = self.any(1.0, 1.5, 4.0)
            found.append(group(f"g{zone}", self.any(1, 2, 3, 4), price, self.any(1, 2), {ZONE: zone}, **limit))
        return tuple(found)

    def classes(self) -> None:
        zones = self.any((), (), ("a",), ("b",))
        fast = self.add(storage_class(zones=zones))
        if not self.one_in(3):
            fast["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
        self.add(storage_class("local", LOCAL))
        self.add(storage_class("now", waits=False))

    def volume(self, name: str, class_name: str, of: str = "", modes: tuple[str, ...] = ()) -> Any:
        found = volume(
            name,
            of=of,
            driver=self.any(EBS, EBS, EBS, ""),
            class_name=class_name,
            size=self.any(*_SIZES),
            accessModes=list(modes or self.any(("ReadWriteOnce",), ("ReadWriteOnce", "ReadWriteMany"))),
        )
        where = self.any(*_ZONES, *_ZONES, "ab", "", *self.nodes)
        if where in self.nodes:
            condition = {"key": HOSTNAME, "operator": "In", "values": [where]}
        else:
            condition = {"key": ZONE, "operator": "In", "values": list(where)}
        found["metadata"]["labels"] = self.labels("a", "b", "a__b") if of else self.labels(where)
        if where:
            found["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [condition]}]}}
        return self.add(found)

    def labels(self, *zones: str) -> dict[str, str]:
        """Return labels of a volume. Those of one that is free say nothing else than its affinity: the scheduler would
        look at that alone when it binds it, and at the labels afterwards."""
        key = self.any("", "", "", "tier", ZONE, "failure-domain.beta.kubernetes.io/zone")
        if key == "tier":
            return {key: "gold"}
        values = [each for each in zones if each in (*_ZONES, "a__b")]
        return {key: self.any(*values)} if key and values else {}

    def claim(self, name: str) -> Any:
        kind = self.any("bound", "bound", "fast", "fast", "local", "local", "local", "kept")
        if self.one_in(12):
            kind = self.any("now", "odd")
        modes, size = self.any(*_MODES), self.any(*_SIZES)
        if kind == "bound":
            self.volume(f"v-{name}", "fast", name, modes)
            return self.add(claim(name, f"v-{name}", modes=modes, size=size))
        if kind == "kept":
            of = self.any("fast", "local")
            kept = self.volume(f"v-{name}", of, name, modes)
            kept["status"]["phase"] = "Available"
            return self.add(claim(name, class_name=of, modes=modes, size=size))
        if kind == "odd":
            return self.odd(name, modes)
        found = self.add(claim(name, class_name=kind, modes=modes, size=size))
        if self.one_in(6):
            found["spec"]["selector"] = {"matchLabels": {"tier": "gold"}}
        if kind != "now" and self.nodes and self.one_in(8):
            found["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = self.any(*self.nodes)
        return found

    def odd(self, name: str, modes: tuple[str, ...]) -> Any:
        what = self.any("lost", "deleted", "gone", "named", "class", "none")
        if what == "none":
            return None
        if what == "class":
            return self.add(claim(name, class_name=self.any("unknown", None, "")))
        found = self.add(claim(name, f"v-{name}", modes=modes, bound=what != "named"))
        if what != "gone":
            self.volume(f"v-{name}", "fast", name, modes)
        if what == "lost":
            found["status"]["phase"] = "Lost"
        if what == "deleted":
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return found

    def pods(self, claims: list[str]) -> None:
        for number in range(self.draw(st.sampled_from([1, 2, 3, 3, 4, 4]))):
            name = f"p{number}"
            used = self.draw(st.lists(st.sampled_from(claims), min_size=min(1, number), max_size=2, unique=True))
            volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in used]
            if self.one_in(5):
                asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": self.any(*_SIZES)}}}
                of = self.any("fast", "local", None)
                template = {"spec": {**asked, **({"storageClassName": of} if of else {})}}
                volumes.append({"name": "own", "ephemeral": {"volumeClaimTemplate": template}})
            more: dict[str, Any] = {"nodeSelector": {ZONE: self.any(*_ZONES)}} if self.one_in(6) else {}
            self.add(pod(name, self.any(1, 1, 1, 2), created=self.any(0, 1, 2), volumes=volumes, **more))

    def running(self, bound: list[str]) -> None:
        for number, where in enumerate(self.nodes):
            if self.one_in(3):
                continue
            fits = [each for each in bound if self._runs_on(each, where)]
            used = self.draw(st.lists(st.sampled_from(fits), max_size=2, unique=True)) if fits else []
            volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in used]
            self.add(pod(f"r{number}", 1, where, volumes=volumes))
            if fits and self.one_in(3):
                self.add(attachment(f"x{number}", where, f"v-{self.any(*fits)}"))

    def _runs_on(self, name: str, where: str) -> bool:
        (of,) = (each for each in self.objects if each["metadata"]["name"] == f"v-{name}")
        return not of["spec"].get("nodeAffinity") and not of["metadata"]["labels"]


@st.composite
def worlds_with_volumes(draw: st.DrawFn) -> World:
    drawn = _Drawn(draw)
    drawn.standing()
    groups = drawn.groups()
    drawn.classes()
    claims = [f"c{n}" for n in range(draw(st.integers(1, 4)))]
    bound = []
    for name in claims:
        found = drawn.claim(name)
        if (
            found
            and found["spec"].get("volumeName")
            and found["status"] == {}
            and "deletionTimestamp" not in found["metadata"]
        ) and "pv.kubernetes.io/bind-completed" in found["metadata"]["annotations"]:
            bound.append(name)
    for number in range(draw(st.sampled_from([0, 1, 2, 3, 4, 4]))):
        drawn.volume(f"free{number}", drawn.any("local", "local", "local", "fast"))
    drawn.running([each for each in bound if any(o["metadata"]["name"] == f"v-{each}" for o in drawn.objects)])
    drawn.pods(claims)
    return World(tuple(drawn.objects), groups)
