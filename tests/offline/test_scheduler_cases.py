"""Small clusters after public reports and a hunt against the scheduler's own plug-ins, with variants of each: how many
pods the kube-scheduler would bind of those that wait, and on how many new nodes. Files are read, and planned, as
`cagrpc plan` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.offline.inputs import Inputs, as_can_be_planned, read_problem
from cagrpc.offline.plan_words import daemons_without_room
from cagrpc.offline.planning import Planned
from solver import Budget, Plan, Problem, solve
from solver.model import Node, NodeGroup, PodSelector, PodSet, PodSpec, TopologySpread
from solver.model.capacity import without_room

ZONE, RACK, HOST = "topology.kubernetes.io/zone", "rack", "kubernetes.io/hostname"
OLD_ZONE, EBS_ZONE = "failure-domain.beta.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"
TYPE = "karpenter.sh/capacity-type"
Object = dict[str, Any]


def node(name: str, cpu: str = "4", taints: Any = (), **labels: str) -> Object:
    """A node that stands; `zone` and `rack` are short for their keys."""
    known = {{"zone": ZONE, "kind": TYPE}.get(key, key): value for key, value in labels.items()}
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "20"}}
    metadata = {"name": name, "labels": {HOST: name, **known}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [*taints]}, "status": status}


def pod(name: str, labels: Mapping[str, str] | None = None, namespace: str = "default", **spec: Any) -> Object:
    requests = {"cpu": spec.pop("cpu", "100m"), "memory": "64Mi"}
    metadata: Object = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    if spec.pop("deleted", False):
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    body = {"containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}], **spec}
    status = {"phase": "Running" if "nodeName" in spec else "Pending"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body, "status": status}


def pods(count: int, labels: Mapping[str, str] | None = None, **spec: Any) -> list[Object]:
    return [pod(f"p{number}", labels, **spec) for number in range(count)]


def spread(key: str = ZONE, skew: Any = 1, app: str | None = "x", **more: Any) -> Object:
    selector = {} if app is None else {"labelSelector": {"matchLabels": {"app": app}}}
    return {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", **selector, **more}


def term(key: str, selector: Object | None = None, **more: Any) -> Object:
    return {
        "topologyKey": key,
        "labelSelector": {"matchLabels": {"app": "x"}} if selector is None else selector,
        **more,
    }


def affinity(*terms: Object) -> Object:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [*terms]}}


def anti(*terms: Object) -> Object:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [*terms]}}


def wishes(*terms: tuple[int, str, str]) -> Object:
    """Preferred nodes: weight, label, value."""
    asked = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for weight, key, value in terms
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": asked}}


def requires(key: str, operator: str, *values: str) -> Object:
    expression: Object = {"key": key, "operator": operator, **({"values": [*values]} if values else {})}
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def group(name: str = "g", cpu: str = "4", price: float = 0.1, zone: str = "", **more: Any) -> Object:
    shape = {"cpu": cpu, "memory": "8Gi", "pods": 10}
    return {"id": name, "allocatable": shape, "price_usd_per_hour": price, **({"zone": zone} if zone else {}), **more}


def daemon_set(cpu: str, labels: Mapping[str, str] | None = None, **spec: Any) -> Object:
    template = {"metadata": {"labels": dict(labels or {"d": "d"})}, "spec": pod("d", cpu=cpu, **spec)["spec"]}
    metadata = {"name": "d", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": template}}


@dataclass(frozen=True)
class Case:
    objects: Sequence[Object]
    served: int
    new: int
    """New nodes."""
    groups: Sequence[Object] = field(default_factory=lambda: [group(zone="zb")])
    provisioner: Object = field(default_factory=dict)
    proven: bool = True
    """Whether the plan is to be proven best in all that it says."""
    groups_opened: frozenset[str] | None = None


X = {"app": "x"}
HONOR: Mapping[str, Any] = {"nodeTaintsPolicy": "Honor"}
TAINT = {"key": "t", "value": "x", "effect": "NoSchedule"}
_A = {"nodeSelector": {"pool": "a"}}
_GA = [group("ga", zone="za", labels={"pool": "a"})]


def _excluded(where: Object, running: int, **asked: Any) -> list[Object]:
    """Two nodes of one zone, a full one that the pods may be on, and one that they may not; three pods."""
    return [
        node("full", "10m", zone="zb", pool="a", rack="r2"),
        where,
        *(pod(f"r{number}", X, nodeName="other") for number in range(running)),
        *pods(3, X, **asked),
    ]


EXCLUDED = {
    "by a node selector": Case(
        _excluded(node("other", zone="zb", pool="b"), 2, **_A, topologySpreadConstraints=[spread()]), 1, 1, _GA
    ),
    "by a node selector, with a skew of 2": Case(
        _excluded(node("other", zone="zb", pool="b"), 3, **_A, topologySpreadConstraints=[spread(skew=2)]), 2, 1, _GA
    ),
    "by node affinity with NotIn": Case(
        _excluded(
            node("other", zone="zb", pool="b"),
            2,
            affinity=requires("pool", "NotIn", "b"),
            topologySpreadConstraints=[spread()],
        ),
        1,
        1,
        _GA,
    ),
    "not with nodeAffinityPolicy Ignore": Case(
        _excluded(
            node("other", zone="zb", pool="b"), 2, **_A, topologySpreadConstraints=[spread(nodeAffinityPolicy="Ignore")]
        ),
        3,
        1,
        _GA,
    ),
    "by a taint, where that is honored": Case(
        _excluded(node("other", taints=[TAINT], zone="zb"), 2, topologySpreadConstraints=[spread(**HONOR)]), 1, 1, _GA
    ),
    "not by a taint where it is ignored": Case(
        _excluded(node("other", "10m", taints=[TAINT], zone="zb"), 2, topologySpreadConstraints=[spread()]), 3, 1, _GA
    ),
    "planned pods there do not count either": Case(
        [
            node("full", "10m", zone="zb", pool="a"),
            node("other", zone="zb", pool="b"),
            *(pod(f"o{number}", X, nodeSelector={"pool": "b"}) for number in range(3)),
            *pods(3, X, **_A, topologySpreadConstraints=[spread()]),
        ],
        4,
        1,
        _GA,
    ),
}
_BOTH = [spread(), spread(RACK, 5)]
MISSING_KEY = {
    "a zone without the rack is no domain": Case(
        [node("norack", "10m", zone="zb"), *pods(3, X, topologySpreadConstraints=[spread(), spread(RACK)])],
        3,
        1,
        [group(zone="za", labels={RACK: "r1"})],
    ),
    "pods on it are not counted": Case(
        [
            node("full", "10m", zone="za", rack="r2"),
            node("norack", zone="za"),
            *(pod(f"r{number}", X, nodeName="norack") for number in range(3)),
            *pods(3, X, topologySpreadConstraints=_BOTH),
        ],
        1,
        1,
        [group(zone="zb", labels={RACK: "r1"})],
    ),
    "of another key": Case(
        [node("nokind", "10m", zone="zb"), *pods(3, X, topologySpreadConstraints=[spread(), spread("kind", 3)])],
        3,
        1,
        [group(zone="za", labels={"kind": "k"})],
    ),
    "a preferred spread's key does not matter": Case(
        [
            node("norack", "10m", zone="zb"),
            *pods(3, X, topologySpreadConstraints=[spread(), {**spread(RACK), "whenUnsatisfiable": "ScheduleAnyway"}]),
        ],
        1,
        1,
        [group(zone="za", labels={RACK: "r1"})],
    ),
}
_SPOT = [
    group(f"{zone}-{kind}", price=price, zone=zone, labels={TYPE: kind})
    for zone, kind, price in [
        ("z1", "spot", 0.1), ("z1", "od", 0.1), ("z2", "spot", 0.1), ("z2", "od", 0.1), ("z3", "od", 0.1),
    ]
]  # fmt: skip
_TWO = [spread(TYPE), spread()]
_FULL = [
    node("s1", "10m", zone="z1", kind="spot"), node("o2", "10m", zone="z2", kind="od"),
    node("o3", "10m", zone="z3", kind="od"),
]  # fmt: skip


def _running(**counts: int) -> list[Object]:
    return [pod(f"{name}-{n}", X, nodeName=name) for name, count in counts.items() for n in range(count)]


ORDERS = {
    "neither of two pods can be placed": Case(
        [*_FULL, *_running(s1=2, o2=2, o3=1), *pods(2, X, topologySpreadConstraints=_TWO)],
        0,
        0,
        _SPOT,
        proven=False,
    ),
    "constraints in the other order": Case(
        [*_FULL, *_running(s1=2, o2=2, o3=1), *pods(2, X, topologySpreadConstraints=_TWO[::-1])],
        0,
        0,
        _SPOT,
        proven=False,
    ),
    "a wider skew lets both in": Case(
        [*_FULL, *_running(s1=2, o2=2, o3=1), *pods(2, X, topologySpreadConstraints=[spread(TYPE, 2), spread()])],
        2,
        2,
        _SPOT,
    ),
    "seven, of which no order places all": Case(pods(7, X, topologySpreadConstraints=_TWO), 5, 3, _SPOT, proven=False),
    "seven, with a wider skew over zones": Case(
        pods(7, X, topologySpreadConstraints=[spread(TYPE), spread(skew=2)]), 7, 3, _SPOT
    ),
    "three, one in each zone": Case(pods(3, X, topologySpreadConstraints=_TWO), 3, 3, _SPOT),
    "a pod that is only counted would keep out the one that the spread binds": Case(
        [
            node("b-1", "10m", zone="zb"),
            pod("carrier", X, topologySpreadConstraints=[spread()]),
            pod("plain", X),
        ],
        1,
        1,
        [group(zone="za")],
        proven=False,
    ),
    "unless it comes later, as its priority is lower": Case(
        [
            node("b-1", "10m", zone="zb"),
            pod("carrier", X, topologySpreadConstraints=[spread()]),
            pod("plain", X, priority=-5),
        ],
        2,
        1,
        [group(zone="za")],
        proven=False,
    ),
    "and it would come first on a node that stands": Case(
        [
            node("b-1", "10m", zone="zb"),
            node("a-1", "1", zone="za"),
            pod("carrier", X, cpu="3", topologySpreadConstraints=[spread()]),
            pod("plain", X, priority=-5, nodeSelector={HOST: "a-1"}),
        ],
        1,
        1,
        [group(zone="za")],
        proven=False,
    ),
    "one that it does not count is no matter": Case(
        [
            node("b-1", "10m", zone="zb"),
            pod("carrier", X, topologySpreadConstraints=[spread()]),
            pod("plain", {"app": "y"}),
        ],
        2,
        1,
        [group(zone="za")],
    ),
}
DOMAINS = {
    "a group that is too small for the pod makes no zone": Case(
        pods(4, X, topologySpreadConstraints=[spread()]), 4, 1, [group("ga", zone="za"), group("gb", "50m", zone="zb")]
    ),
    "nor one of another pool": Case(
        pods(4, X, **_A, topologySpreadConstraints=[spread()]), 4, 1, [*_GA, group("gb", zone="zb")]
    ),
    "nor one that is at its maximum": Case(
        pods(4, X, topologySpreadConstraints=[spread()]),
        4,
        1,
        [group("ga", zone="za"), group("gb", zone="zb", max_size=0)],
    ),
    "one that can have a node does": Case(
        pods(4, X, topologySpreadConstraints=[spread()]), 4, 2, [group("ga", zone="za"), group("gb", zone="zb")]
    ),
    "nodes that stand are all there are": Case(
        [node("n1"), node("n2"), *_running(n1=1, n2=1), *pods(1, X, topologySpreadConstraints=[spread(HOST)])],
        1,
        0,
        [group(max_size=0)],
    ),
    "over hostnames with a skew of 2": Case(
        [node("n1"), node("n2"), *_running(n1=2, n2=2), *pods(2, X, topologySpreadConstraints=[spread(HOST, 2)])],
        2,
        0,
        [group(max_size=0)],
    ),
    "level by level": Case(
        [node("n1"), node("n2"), *pods(4, X, topologySpreadConstraints=[spread(HOST)])],
        4,
        0,
        [group(max_size=0)],
        proven=False,
    ),
}
SELECTORS = {
    "no selector": Case(pods(1, topologySpreadConstraints=[spread(app=None)]), 1, 1),
    "no selector, preferred": Case(
        pods(2, topologySpreadConstraints=[{**spread(app=None), "whenUnsatisfiable": "ScheduleAnyway"}]), 2, 1
    ),
    "an empty selector counts nobody": Case(
        pods(3, topologySpreadConstraints=[spread(app=None, labelSelector={}, minDomains=3)]), 3, 1
    ),
    "an empty selector over hostnames": Case(
        pods(3, topologySpreadConstraints=[spread(HOST, app=None, labelSelector={})]), 3, 1
    ),
    "matchLabelKeys without a selector": Case(
        pods(2, X, topologySpreadConstraints=[spread(app=None, matchLabelKeys=["app"])]), 2, 1
    ),
    "pods of another namespace": Case(
        [
            node("a-1", "10m", zone="za"),
            pod("there", X, namespace="other", nodeName="a-1"),
            *pods(2, X, topologySpreadConstraints=[spread()]),
        ],
        1,
        1,
    ),
}
ENDING = {
    "a spread does not count them": Case(
        [
            node("a-1", "10m", zone="za"),
            *(pod(f"r{n}", X, nodeName="a-1", deleted=True) for n in range(2)),
            *pods(3, X, topologySpreadConstraints=[spread()]),
        ],
        1,
        1,
    ),
    "nor one over hostnames": Case(
        [
            node("n1"),
            pod("r", X, nodeName="n1", deleted=True),
            *pods(1, X, topologySpreadConstraints=[spread(HOST)]),
        ],
        1,
        0,
        [group(max_size=0)],
    ),
    "affinity does": Case(
        [node("a-1", zone="za"), pod("r", X, nodeName="a-1", deleted=True), *pods(1, affinity=affinity(term(ZONE)))],
        1,
        0,
    ),
    "anti-affinity does": Case(
        [node("a-1", zone="za"), pod("r", X, nodeName="a-1", deleted=True), *pods(1, affinity=anti(term(ZONE)))], 1, 1
    ),
    "one that waits is not planned": Case(pods(1, deleted=True), 0, 0),
}
_POOLS = [group("ga", labels={"pool": "a"}), group("gb", labels={"pool": "b"})]
_T = {"app": "x", "team": "t"}


def _of_team(key: str) -> Object:
    return affinity(term(key, {"matchLabels": {"team": "t"}}))


FIRST = {
    "terms that overlap, in two pools": Case(
        [
            pod("a", _T, nodeSelector={"pool": "a"}, affinity=affinity(term("pool"))),
            pod("b", _T, nodeSelector={"pool": "b"}, affinity=_of_team("pool")),
        ],
        1,
        1,
        _POOLS,
    ),
    "three of them": Case(
        [
            pod("a", _T, nodeSelector={"pool": "a"}, affinity=affinity(term("pool"))),
            pod("b", _T, nodeSelector={"pool": "b"}, affinity=_of_team("pool")),
            pod("c", _T, nodeSelector={"pool": "b"}, affinity=affinity(term("pool", {"matchLabels": _T}))),
        ],
        2,
        1,
        _POOLS,
    ),
    "a pod that is only counted may come first, so the other goes with it": Case(
        [
            pod("target", X, nodeSelector={"pool": "a"}, cpu="3"),
            pod("carrier", X, affinity=affinity(term("pool")), cpu="3"),
        ],
        2,
        2,
        _POOLS,
        groups_opened=frozenset({"ga"}),
    ),
    "terms that do not": Case(
        [
            pod("a", X, nodeSelector={"pool": "a"}, affinity=affinity(term("pool"))),
            pod("b", {"team": "t"}, nodeSelector={"pool": "b"}, affinity=_of_team("pool")),
        ],
        2,
        2,
        _POOLS,
    ),
    "one term counts what the other key has not": Case(
        [
            node("n", "10m", rack="r1"),
            pod("r", nodeName="n"),
            pod("p", affinity=affinity(term(RACK, {}), term(ZONE, {}))),
        ],
        0,
        0,
        [group(zone="zc", labels={RACK: "r1"})],
    ),
    "with the keys in the other order": Case(
        [
            node("n", "10m", zone="zc"),
            pod("r", nodeName="n"),
            pod("p", affinity=affinity(term(RACK, {}), term(ZONE, {}))),
        ],
        0,
        0,
        [group(zone="zc", labels={RACK: "r1"})],
    ),
    "a pod on a node with neither key is not seen": Case(
        [node("n", "10m"), pod("r", nodeName="n"), pod("p", affinity=affinity(term(RACK, {}), term(ZONE, {})))],
        1,
        1,
        [group(zone="zc", labels={RACK: "r1"})],
    ),
    "needed and needing, one of them met already": Case(
        [
            node("n", zone="zb", rack="r1"),
            pod("r", {"tier": "front"}, nodeName="n"),
            pod("a", X, affinity=affinity(term(ZONE, {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}))),
            pod("b", {"tier": "front"}, affinity=affinity(term(RACK))),
        ],
        2,
        0,
    ),
    "needed and needing, one of them met in another rack of the zone": Case(
        [
            node("n", zone="zb", rack="r1"),
            node("m", zone="zb", rack="r2"),
            pod("r", {"tier": "front"}, nodeName="m"),
            pod(
                "a",
                X,
                cpu="1",
                affinity=affinity(term(ZONE, {"matchExpressions": [{"key": "tier", "operator": "Exists"}]})),
            ),
            pod("b", {"tier": "front"}, cpu="1", affinity=affinity(term(RACK))),
        ],
        2,
        0,
    ),
    "needed and needing, one of them met in another zone": Case(
        [
            node("n", zone="zb", rack="r1"),
            node("m", "10m", zone="zc", rack="r2"),
            pod("r", {"tier": "front"}, nodeName="m"),
            pod("a", X, affinity=affinity(term(ZONE, {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}))),
            pod("b", {"tier": "front"}, affinity=affinity(term(RACK))),
        ],
        0,
        0,
        [group(zone="zb")],
    ),
    "three in a circle, of which one is met": Case(
        [
            node("n", zone="zb", rack="r1"),
            pod("r", {"app": "z"}, nodeName="n"),
            pod("a", {"app": "a"}, affinity=affinity(term(ZONE, {"matchLabels": {"app": "z"}}))),
            pod("b", {"app": "b"}, affinity=affinity(term(RACK, {"matchLabels": {"app": "a"}}))),
            pod("z", {"app": "z"}, affinity=affinity(term(RACK, {"matchLabels": {"app": "b"}}))),
        ],
        3,
        0,
    ),
    "needed and needing, neither met": Case(
        [
            node("n", zone="zb", rack="r1"),
            pod("a", X, affinity=affinity(term(ZONE, {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}))),
            pod("b", {"tier": "front"}, affinity=affinity(term(RACK))),
        ],
        0,
        0,
    ),
}
NAMES = {
    "every node has a hostname": Case(pods(1, affinity=requires(HOST, "Exists")), 1, 1),
    "none is without": Case(pods(1, affinity=requires(HOST, "DoesNotExist")), 0, 0),
    "a new one has none that is known": Case(pods(1, affinity=requires(HOST, "In", "n1")), 0, 0),
    "and is no other one": Case(pods(1, affinity=requires(HOST, "NotIn", "n1")), 1, 1),
    **{
        f"{key} is {value}": Case(pods(1, nodeSelector={key: value}), 1, 1)
        for key, value in [
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", "amd64"),
            (OLD_ZONE, "zb"),
            (EBS_ZONE, "zb"),
            ("topology.gke.io/zone", "zb"),
            ("karpenter.sh/registered", "true"),
        ]
    },
    **{
        f"{key} is {value}": Case(pods(1, nodeSelector={key: value}), served, served, [group(zone="zb", labels=labels)])
        for key, value, labels, served in [
            ("failure-domain.beta.kubernetes.io/region", "r", {"topology.kubernetes.io/region": "r"}, 1),
            ("failure-domain.beta.kubernetes.io/region", "s", {"topology.kubernetes.io/region": "r"}, 0),
            ("beta.kubernetes.io/instance-type", "m5", {"node.kubernetes.io/instance-type": "m5"}, 1),
            (OLD_ZONE, "za", {}, 0),
        ]
    },
    "affinity over it": Case(
        pods(4, X, affinity=affinity(term(OLD_ZONE)), cpu="2"), 4, 2, [group("ga", zone="za"), group("gb", zone="zb")]
    ),
    "anti-affinity over the old name of zones": Case(
        pods(2, X, affinity=anti(term(OLD_ZONE))), 2, 2, [group("ga", zone="za"), group("gb", zone="zb")]
    ),
    "a spread over it": Case(
        pods(4, X, topologySpreadConstraints=[spread(OLD_ZONE)]), 4, 2, [group("ga", zone="za"), group("gb", zone="zb")]
    ),
}
_BIG = [group("small", "2", 0.1), group("large", "4", 0.2)]
DAEMONS = {
    "one that selects registered nodes": Case(
        [daemon_set("1", nodeSelector={"karpenter.sh/registered": "true"}), pod("p", cpu="1500m")],
        1,
        1,
        _BIG,
        groups_opened=frozenset({"large"}),
    ),
    "one with an old label": Case(
        [daemon_set("1", nodeSelector={"beta.kubernetes.io/os": "linux"}), pod("p", cpu="1500m")],
        1,
        1,
        _BIG,
        groups_opened=frozenset({"large"}),
    ),
    "one for another system": Case(
        [daemon_set("1", nodeSelector={"beta.kubernetes.io/os": "windows"}), pod("p", cpu="1500m")],
        1,
        1,
        _BIG,
        groups_opened=frozenset({"small"}),
    ),
    "one with an old zone, as the pods": Case(
        [daemon_set("1", nodeSelector={OLD_ZONE: "zb"}), *(pod(f"p{n}", cpu="1500m") for n in range(2))],
        2,
        1,
        [group(cpu="4500m", zone="zb")],
    ),
    "affinity that only its pod would meet": Case(
        [
            daemon_set("10m", {"app": "x"}),
            *pods(1, affinity=affinity(term(RACK, {"matchLabels": X}, namespaceSelector={}))),
        ],
        0,
        0,
        [group(labels={RACK: "r"})],
        proven=False,
    ),
    "that one on a node that stands would": Case(
        [
            node("n", rack="r"),
            pod("d-n", X, "kube-system", nodeName="n"),
            *pods(1, affinity=affinity(term(RACK, {"matchLabels": X}, namespaceSelector={}))),
        ],
        1,
        0,
        [group(labels={RACK: "r"})],
    ),
    "affinity that its pod has not the labels for": Case(
        [
            daemon_set("10m", {"app": "y"}),
            *pods(1, affinity=affinity(term(RACK, {"matchLabels": X}, namespaceSelector={}))),
        ],
        0,
        0,
        [group(labels={RACK: "r"})],
    ),
    "affinity to pods of which one is its": Case(
        [daemon_set("10m", X), *pods(2, X, affinity=affinity(term(RACK)))], 2, 1, [group(labels={RACK: "r"})]
    ),
    "anti-affinity to it, by its labels": Case(
        [
            daemon_set("10m", {"app": "x"}),
            *pods(1, affinity=anti(term(RACK, {"matchLabels": X}, namespaceSelector={}))),
        ],
        0,
        0,
        [group(labels={RACK: "r"})],
    ),
    "anti-affinity to it": Case(
        [daemon_set("10m"), *pods(1, affinity=anti(term(RACK, {}, namespaceSelector={})))],
        0,
        0,
        [group(labels={RACK: "r"})],
    ),
}
PREFERENCES = {
    "the heaviest is kept": Case(
        pods(1, affinity=wishes((100, "pool", "a"), (1, "pool", "b"))), 1, 1, _POOLS, groups_opened=frozenset({"ga"})
    ),
    "whatever their order": Case(
        pods(1, affinity=wishes((1, "pool", "b"), (100, "pool", "a"))), 1, 1, _POOLS, groups_opened=frozenset({"ga"})
    ),
    "and whatever it costs": Case(
        pods(1, affinity=wishes((2, "pool", "a"), (1, "pool", "b"))),
        1,
        1,
        [group("ga", price=9.0, labels={"pool": "a"}), group("gb", labels={"pool": "b"})],
        groups_opened=frozenset({"ga"}),
    ),
}
PREFERENCES |= {
    "two lighter ones together do not outweigh it": Case(
        pods(1, affinity=wishes((3, "pool", "a"), (2, "pool", "b"), (2, "disk", "hdd"))),
        1,
        1,
        [group("ga", labels={"pool": "a", "disk": "ssd"}), group("gb", labels={"pool": "b", "disk": "hdd"})],
        groups_opened=frozenset({"ga"}),
    ),
    "both where they do not exclude each other": Case(
        pods(1, affinity=wishes((100, "pool", "a"), (1, "disk", "hdd"))),
        1,
        1,
        [group("ga", labels={"pool": "a", "disk": "ssd"}), group("gb", price=9.0, labels={"pool": "a", "disk": "hdd"})],
        groups_opened=frozenset({"gb"}),
    ),
}
_AGENT = {"key": "node.cilium.io/agent-not-ready", "value": "true", "effect": "NoExecute"}
STARTING = {
    "of the provisioner": Case([node("n", taints=[_AGENT]), pod("p")], 1, 0, provisioner={"startup_taints": [_AGENT]}),
    "with CA's prefix": Case(
        [node("n", taints=[{**_AGENT, "key": "startup-taint.cluster-autoscaler.kubernetes.io/x"}]), pod("p")], 1, 0
    ),
    "with its older one": Case(
        [node("n", taints=[{**_AGENT, "key": "ignore-taint.cluster-autoscaler.kubernetes.io/x"}]), pod("p")], 1, 0
    ),
    "nobody's": Case([node("n", taints=[_AGENT]), pod("p")], 1, 1),
    "one that nodes keep": Case(
        [node("n", taints=[TAINT]), pod("p")], 1, 1, provisioner={"startup_taints": [{**TAINT, "value": "y"}]}
    ),
}


def _claim(**spec: Any) -> list[Object]:
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    metadata = {"name": "c", "namespace": "default"}
    return [
        pod("p", volumes=volumes),
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": body},
    ]


def _class(name: str, *, default: bool, **more: Any) -> Object:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    metadata = {"name": name, "annotations": annotations}
    of = {"provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer", **more}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata, **of}


def _in_zone(value: str, key: str = EBS_ZONE) -> Object:
    return {"allowedTopologies": [{"matchLabelExpressions": [{"key": key, "values": [value]}]}]}


STORAGE = {
    "the default class": Case([*_claim(), _class("gp3", default=True)], 1, 1),
    "none by default": Case([*_claim(), _class("gp3", default=False)], 0, 0),
    "no class on purpose": Case([*_claim(storageClassName=""), _class("gp3", default=True)], 0, 0),
    "the default class's zone": Case([*_claim(), _class("gp3", default=True, **_in_zone("zz"))], 0, 0),
    "a driver's name of the zone": Case(
        [*_claim(storageClassName="gp3"), _class("gp3", default=False, **_in_zone("zb", "topology.gke.io/zone"))], 1, 1
    ),
}


def _tied(key: str, value: str, *nodes: Object) -> list[Object]:
    """A pod with a volume that is tied to a zone by a driver's key."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    claim = _claim(storageClassName="gp3", volumeName="pv")
    claim[1]["metadata"] |= {"uid": "c", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    return [
        *nodes,
        *claim,
        _class("gp3", default=False),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "pv"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "gp3",
                "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "v"},
                "claimRef": {"namespace": "default", "name": "c", "uid": "c"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
            "status": {"phase": "Bound"},
        },
    ]  # fmt: skip


_ZONES = [group("ga", price=0.01, zone="za"), group("gb", zone="zb")]
VOLUMES = {
    **{
        f"tied by {key}": Case(_tied(key, "zb"), 1, 1, _ZONES, groups_opened=frozenset({"gb"}))
        for key in (EBS_ZONE, "topology.gke.io/zone", ZONE)
    },
    "tied by a zone that is nowhere": Case(_tied(EBS_ZONE, "zz"), 0, 0, _ZONES),
    "with a node there that has the driver's label": Case(
        _tied(EBS_ZONE, "zb", node("n", zone="zb", **{EBS_ZONE: "zb"})), 1, 0, _ZONES
    ),
    "with a node there whose driver has not come yet": Case(_tied(EBS_ZONE, "zb", node("n", zone="zb")), 1, 1, _ZONES),
    "made in a zone by its class": Case(
        [*_claim(storageClassName="gp3"), _class("gp3", default=False, **_in_zone("zb"))],
        1,
        1,
        _ZONES,
        groups_opened=frozenset({"gb"}),
    ),
}
_POOL: Mapping[str, Any] = {"karpenter.sh/nodepool": "p"}


def _with_capacity(count: int, cpu: str) -> list[Object]:
    found = [node(f"n{number}", "10m", **_POOL) for number in range(count)]
    for each in found:
        each["status"]["capacity"] = {"cpu": cpu, "memory": "8Gi", "pods": "20"}
    return found


LIMITS = {
    "standing nodes count with capacity": Case(
        [*_with_capacity(3, "2"), pod("p")], 0, 0, provisioner={"limits": {"cpu": "7"}}
    ),
    "up to it": Case([*_with_capacity(3, "2"), pod("p")], 1, 1, provisioner={"limits": {"cpu": "10"}}),
    "without capacity with what is allocatable": Case(
        [node("n", "1", **_POOL), pod("p", cpu="3")], 0, 0, provisioner={"limits": {"cpu": "4"}}
    ),
    "nodes of another pool do not": Case(
        [node("n", "8", **{**_POOL, "karpenter.sh/nodepool": "q"}), pod("p", cpu="3", nodeSelector={ZONE: "zb"})],
        1,
        1,
        provisioner={"limits": {"cpu": "4"}},
    ),
}


def _namespaced(key: str, operator: str) -> Object:
    selector = {
        "matchExpressions": [{"key": key, "operator": operator, **({"values": ["y"]} if operator == "NotIn" else {})}]
    }
    return anti(term(ZONE, namespaceSelector=selector))


def _other(labels: Mapping[str, str]) -> list[Object]:
    names = {"default": {}, "other": labels}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {**of, "kubernetes.io/metadata.name": name}},
        }
        for name, of in names.items()
    ]


def _apart_in_other(affinity: Object) -> list[Object]:
    return [node("b-1", zone="zb"), pod("r", {}, "other", nodeName="b-1", affinity=affinity)]


_THERE = [node("b-1", zone="zb"), pod("r", X, namespace="other", nodeName="b-1")]
NAMESPACES = {
    "DoesNotExist matches every namespace": Case(
        [*_other({"l": "1"}), *_THERE, pod("p", affinity=_namespaced("l", "DoesNotExist"))], 0, 0
    ),
    "NotIn too": Case([*_other({"l": "y"}), *_THERE, pod("p", affinity=_namespaced("l", "NotIn"))], 0, 0),
    "a pod that runs is apart from those alone that have not": Case(
        [*_other({"l": "1"}), *_apart_in_other(_namespaced("l", "DoesNotExist")), pod("p", X)], 0, 0
    ),
    "and not from its own where that has": Case(
        [*_other({"l": "1"}), *_apart_in_other(_namespaced("l", "DoesNotExist")), pod("p", X, "other")], 1, 0
    ),
    "nor by NotIn": Case(
        [*_other({"l": "y"}), *_apart_in_other(_namespaced("l", "NotIn")), pod("p", X, "other")], 1, 0
    ),
    "Exists does not": Case([*_other({}), *_THERE, pod("p", affinity=_namespaced("l", "Exists"))], 1, 0),
    "none is the pod's own": Case([*_other({}), *_THERE, pod("p", affinity=anti(term(ZONE)))], 1, 0),
}
SERVING = {
    "preferences of two pods that exclude each other": Case(
        [
            pod("a", {"t": "1"}, affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 13, "podAffinityTerm": term(ZONE, {})}
            ]}}),
            pod("b", affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 48, "podAffinityTerm": {"topologyKey": ZONE}}
            ]}}),
            pod("c", cpu="500m"),
        ],
        3,
        1,
        proven=False,
    ),
    "on the one node that there may be": Case(
        [
            node("n", zone="zc"),
            *(pod(f"w{n}", X, affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": term(HOST)}
            ]}}) for n in range(4)),
        ],
        4,
        0,
        [group(max_size=0)],
        proven=False,
    ),
    "of pods and of soft taints": Case(
        [
            node("n", zone="zc", taints=[{**TAINT, "effect": "PreferNoSchedule"}]),
            *(pod(f"w{n}", X, affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": term(ZONE)}
            ]}}) for n in range(4)),
        ],
        4,
        0,
        [group(max_size=0)],
        proven=False,
    ),
    "of a zone where the other pods are": Case(
        [
            node("n", zone="zc"),
            pod("w", X),
            *pods(3, X, affinity=wishes((100, ZONE, "za"))),
        ],
        4,
        0,
        [group("ga", zone="za", max_size=0)],
    ),
    "of a spread, with one node and one zone": Case(
        [
            node("n", zone="zc"),
            *pods(4, X, topologySpreadConstraints=[{**spread(HOST), "whenUnsatisfiable": "ScheduleAnyway"}]),
        ],
        4,
        0,
        [group(max_size=0)],
        proven=False,
    ),
    "beside pods that must not share a node, in an unlimited group": Case(
        [
            *(pod(f"w{n}", {"app": "w0"}, cpu="1") for n in range(6)),
            *(pod(f"a{n}", {"a": "b"}, affinity=anti(term(HOST, {"matchLabels": {"app": "w0"}}))) for n in range(2)),
        ],
        8,
        3,
    ),
    "beside pods that must not share a node": Case(
        [
            node("n", "8", rack="r1"),
            *(pod(f"w{n}", {"app": "w0"}, cpu="1") for n in range(5)),
            pod("alone", affinity=anti(term(HOST, {"matchLabels": {"app": "w0"}}))),
        ],
        6,
        1,
        [group(), group("g2", price=0.2)],
    ),
}  # fmt: skip


def _lost(name: str, **labels: str) -> Object:
    """A node that is not Ready, with room for any of these pods."""
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    lost = node(name, taints=[taint], **labels)
    lost["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    return lost


_ALL = {"tolerations": [{"operator": "Exists"}]}
_TWO_ZONES = [group("ga", zone="za"), group("gb", zone="zb")]
NOT_READY = {
    "its zone counts for a spread": Case(
        [_lost("n", zone="zc"), *pods(6, X, topologySpreadConstraints=[spread()])], 2, 2, _TWO_ZONES
    ),
    "not for one that honours taints": Case(
        [_lost("n", zone="zc"), *pods(6, X, topologySpreadConstraints=[spread(**HONOR)])], 6, 2, _TWO_ZONES
    ),
    "what runs there keeps others away": Case(
        [_lost("n", zone="zb"), pod("r", X, nodeName="n"), *pods(2, X, affinity=anti(term(ZONE)))], 1, 1, _TWO_ZONES
    ),
    "what runs there is what others need": Case(
        [_lost("n", zone="zb"), pod("r", X, nodeName="n"), *pods(2, affinity=affinity(term(ZONE)))],
        2,
        1,
        _TWO_ZONES,
        groups_opened=frozenset({"gb"}),
    ),
    "nothing is planned there": Case([_lost("n", zone="zb"), *pods(2, X, **_ALL)], 2, 1, _TWO_ZONES),
}

CASES = {
    f"{kind}: {name}": case
    for kind, cases in {
        "excluded nodes": EXCLUDED, "a missing key": MISSING_KEY, "orders": ORDERS, "domains": DOMAINS,
        "selectors": SELECTORS, "ending pods": ENDING, "first pods": FIRST, "names": NAMES, "DaemonSets": DAEMONS,
        "preferences": PREFERENCES, "starting nodes": STARTING, "storage": STORAGE, "limits": LIMITS,
        "namespaces": NAMESPACES, "serving": SERVING, "volumes": VOLUMES,
        "nodes that are not Ready": NOT_READY,
    }.items()
    for name, case in cases.items()
}  # fmt: skip


def planned(case: Case, directory: Path) -> Plan:
    return solve(_read(case, directory), Budget(5.0, 2.0))


def _read(case: Case, directory: Path) -> Problem:
    (directory / "pods.yaml").write_text(yaml.safe_dump_all(case.objects))
    provisioner = {"name": "p", "node_groups": [*case.groups], **case.provisioner}
    (directory / "provisioners.yaml").write_text(yaml.safe_dump(provisioner))
    read = read_problem(Inputs(pods=(directory / "pods.yaml",), provisioners=(directory / "provisioners.yaml",)))
    return read.problem


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_the_scheduler_would_bind(case: Case, tmp_path: Path) -> None:
    plan = planned(case, tmp_path)

    left = sum(each.count for each in plan.unplaced)
    served = sum(each.count for each in plan.pod_classes) - left
    assert (served, sum(each.delta for each in plan.increments)) == (case.served, case.new)
    assert case.groups_opened in (None, {each.node_group for each in plan.increments})
    assert all(each.reasons for each in plan.unplaced)
    if case.proven:
        assert str(plan.certificate.status) in ("optimal", "infeasible")
    elif left:
        assert plan.certificate.unserved_unproven


@pytest.mark.parametrize(("cpu", "said"), [("3", True), ("1500m", False), ("100m", False)])
def test_a_daemon_set_that_has_no_room_on_a_new_node_is_told(cpu: str, said: bool, tmp_path: Path) -> None:
    case = Case([daemon_set(cpu), pod("p", cpu="1500m")], 1, 1, [group("small", "1600m")])
    read = _read(case, tmp_path)
    found = solve(read, Budget(5.0, 2.0))
    told = list(daemons_without_room(Planned(found, read, Budget(), {each.id: each for each in read.node_groups})))
    assert [("DaemonSet" in each and "small" in each) for each in told] == [True] * said


@pytest.mark.parametrize("sizes", [("3", "2"), ("2", "3")])
def test_of_daemon_sets_that_have_room_alone_and_not_together_any_may_be_there(
    sizes: tuple[str, str], tmp_path: Path
) -> None:
    sets = [{**daemon_set(cpu), "metadata": {"name": f"d{cpu}", "namespace": "default"}} for cpu in sizes]
    small, large = group("small", "4"), group("large", "16", price=9.0)
    plan = planned(Case([*sets, pod("p", cpu="1500m")], 1, 1, [small, large]), tmp_path)
    assert [each.node_group for each in plan.increments] == ["large"]
    read = _read(Case([*sets, pod("p", cpu="0")], 1, 1, [small]), tmp_path)
    assert sum(len(without_room(each, read.daemon_sets)) for each in read.node_groups) == 1


@pytest.mark.parametrize(("labels", "gets_stuck"), [(X, True), ({"app": "y"}, False)])
def test_a_pod_whose_spread_counts_the_pod_of_a_daemon_set_may_get_stuck(
    labels: Mapping[str, str], gets_stuck: bool, tmp_path: Path
) -> None:
    mine = pod("p", X, topologySpreadConstraints=[spread(HOST, minDomains=2)])
    plan = planned(Case([daemon_set("10m", labels), mine], 1, 1), tmp_path)
    assert bool(plan.may_get_stuck) == gets_stuck
    assert (str(plan.certificate.status) == "optimal") == (not gets_stuck)


def test_what_is_beyond_planning_leaves_out_itself_alone() -> None:
    beyond = PodSpec(topology_spread=(TopologySpread(ZONE, 2**40, PodSelector(None)),))
    groups = (NodeGroup("g", {"cpu": 4000, "pods": 10}, 0.1),)
    nodes = (Node("odd", {"cpu": -1}), Node("n", {"cpu": 100, "pods": 1}))
    sets = (PodSet("default/large", beyond, 1), PodSet("default/p", PodSpec((("cpu", 100),)), 2))
    problem, said = as_can_be_planned(Problem(sets, groups, nodes))
    plan = solve(problem, Budget(5.0, 2.0))
    (unplaced,) = plan.unplaced
    assert plan.pod_classes[unplaced.pod_class].example == "default/large"
    assert "more than planning handles: topology spread" in unplaced.reasons[0]
    assert [each.name for each in problem.nodes] == ["n"]
    assert any("node odd" in each for each in said)
