"""Plans for new nodes with DaemonSets' pods, as the scheduler's own plug-ins judge them."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from bench.hunted.cases import Case, planned, question
from solver.model import Status
from tests.oracle import KubeScheduler, pod

ZONE = "topology.kubernetes.io/zone"


def daemon_set(name: str, cpu: str, *ports: int, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    mine = {"d": name, **(labels or {})}
    template = pod("", cpu, mine, **spec)
    template["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port} for port in ports]
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"d": name}},
            "template": {"metadata": {"labels": mine}, "spec": template["spec"]},
        },
    }  # fmt: skip


def group(name: str, zone: str = "za", **more: Any) -> dict[str, Any]:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": 10}
    return {"id": name, "allocatable": allocatable, "price_usd_per_hour": 1.0, "zone": zone, "max_size": 5, **more}


def case(*pods: dict[str, Any], groups: Any = (), **parts: Any) -> Case:
    lists: dict[str, Any] = {"namespaces": [], "nodes": [], "bound": [], "daemonsets": [], "objects": []}
    return {
        **lists,
        "pending": list(pods),
        "provisioners": [{"name": "p", "node_groups": list(groups or [group("g")])}],
        **parts,
    }


def nodes_and_left(of: Case, oracle: Path, directory: Path) -> tuple[int, int]:
    """How many nodes the plan opens, which the scheduler fills as planned, and how many pods it leaves out."""
    found = planned(of, directory)
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(of, found, nominated=True))
    assert (answer["refused"], answer["stuck"], answer["undecided"]) == ([], [], 0)
    assert not any(answer["takes"].values())
    return len(found.assigned.new), sum(each.count for each in found.plan.unplaced)


@pytest.mark.parametrize(
    ("sets", "pods", "nodes"),
    [
        ([("1", (80,)), ("1", (80,))], 3, 1),
        ([("1", (80,)), ("2", (80,))], 2, 1),
        ([("1", (80,)), ("2", (80,))], 3, 2),
        ([("1", (80,)), ("1", (81,))], 2, 1),
        ([("1", (80,)), ("1", (81,))], 3, 2),
        ([("1", (80,)), ("1", (80,)), ("1", (80, 81))], 3, 1),
    ],
)
def test_of_daemon_sets_with_one_host_port_a_new_node_has_one(
    sets: list[tuple[str, tuple[int, ...]]], pods: int, nodes: int, oracle: Path, tmp_path: Path
) -> None:
    daemons = [daemon_set(f"d{number}", cpu, *ports) for number, (cpu, ports) in enumerate(sets)]
    for order in permutations(daemons):
        of = case(*(pod(f"p{number}") for number in range(pods)), daemonsets=list(order))
        assert nodes_and_left(of, oracle, tmp_path) == (nodes, 0)


@pytest.mark.parametrize("sizes", [("3", "2"), ("2", "3")])
def test_of_daemon_sets_that_do_not_fit_together_whichever_comes_first_is_there(
    sizes: tuple[str, str], oracle: Path, tmp_path: Path
) -> None:
    daemons = [daemon_set(f"d{number}", cpu) for number, cpu in enumerate(sizes)]
    large: dict[str, Any] = {"allocatable": {"cpu": "16", "memory": "8Gi", "pods": 10}, "price_usd_per_hour": 9.0}
    of = case(pod("a", "2"), groups=[group("g"), group("large", **large)], daemonsets=daemons)
    found = planned(of, tmp_path)
    for order in permutations(daemons):
        with KubeScheduler(oracle) as scheduler:
            answer = scheduler.ask(question({**of, "daemonsets": order}, found, nominated=True))
        assert (answer["refused"], answer["stuck"], found.plan.unplaced) == ([], [], ())


def test_its_pods_have_the_defaults_that_the_api_server_gives(oracle: Path, tmp_path: Path) -> None:
    """Ports on the host network, and requests that follow from limits."""
    container: dict[str, Any] = {"name": "c", "image": "x", "ports": [{"containerPort": 80}]}
    container["resources"] = {"limits": {"cpu": "2"}}
    template = {"metadata": {"labels": {"d": "d"}}, "spec": {"hostNetwork": True, "containers": [container]}}
    daemon = daemon_set("d", "1")
    daemon["spec"]["template"] = template
    wants = pod("a", "1")
    wants["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    assert nodes_and_left(case(wants, pod("b", "3"), daemonsets=[daemon]), oracle, tmp_path) == (0, 2)


def apart_from(key: str, **labels: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def node(name: str, zone: str = "za", cpu: str = "1") -> dict[str, Any]:
    labels = {ZONE: zone, "kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": {"cpu": cpu, "memory": "8Gi", "pods": "9"}},
    }


def test_a_pod_whose_spread_counts_a_daemon_sets_pod_may_get_stuck_and_is_named(oracle: Path, tmp_path: Path) -> None:
    """On the only new node is one already that counts, and on the second one that must be there nobody is."""
    spread = {
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2,
        "labelSelector": {"matchLabels": {"app": "a"}},
    }  # fmt: skip
    mine = pod("a", labels={"app": "a"}, topologySpreadConstraints=[spread])
    for labels, stuck in (({"app": "a"}, 1), ({}, 0)):
        of = case(mine, daemonsets=[daemon_set("d", "100m", labels=labels)])
        found = planned(of, tmp_path)
        with KubeScheduler(oracle) as scheduler:
            answer = scheduler.ask(question(of, found, nominated=True))
        assert len(answer["stuck"]) == len(found.plan.may_get_stuck) == stuck
        assert (found.plan.certificate.status is Status.OPTIMAL) == (not stuck)


AGENT: dict[str, Any] = daemon_set("agent", "100m", labels={"app": "agent"}, nodeSelector={"pool": "big"})
BIG: dict[str, Any] = {"labels": {"pool": "big"}}
APART: dict[str, Any] = {"affinity": apart_from(ZONE, app="agent"), "nodeSelector": {"pool": "small"}}
ON_BIG: dict[str, Any] = {"nodeSelector": {"pool": "big"}}


@pytest.mark.parametrize(
    ("zones", "nodes", "left"),
    [
        (("za", "za"), 1, 1),
        (("za", "zb"), 2, 0),
    ],
)
def test_a_pod_apart_from_a_daemon_set_over_zones_is_in_no_zone_with_a_new_node_of_it(
    zones: tuple[str, str], nodes: int, left: int, oracle: Path, tmp_path: Path
) -> None:
    groups = [
        group("big", "za", **BIG),
        *(group(f"small-{n}", each, labels={"pool": "small"}) for n, each in enumerate(zones)),
    ]
    of = case(pod("a", **APART), pod("b", **ON_BIG), groups=groups, daemonsets=[AGENT])
    found = planned(of, tmp_path)
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(of, found, nominated=True))
    assert (answer["refused"], answer["stuck"]) == ([], [])
    assert (len(found.assigned.new), sum(each.count for each in found.plan.unplaced)) == (nodes, left)
    assert all(each.reasons for each in found.plan.unplaced)


def test_on_a_node_that_stands_it_is_there_before_new_nodes(oracle: Path, tmp_path: Path) -> None:
    of = case(
        pod("a", affinity=apart_from(ZONE, app="agent")),
        pod("b", "3", **ON_BIG),
        groups=[group("big", "za", **BIG)],
        daemonsets=[AGENT],
        nodes=[node("n")],
    )
    assert nodes_and_left(of, oracle, tmp_path) == (1, 0)


def test_of_many_zones_it_finds_one_without(oracle: Path, tmp_path: Path) -> None:
    groups = [
        group(f"{pool}-{zone}", zone, labels={"pool": pool}) for pool in ("big", "small") for zone in ("za", "zb", "zc")
    ]
    pods = [pod(f"a{n}", "3", **APART) for n in range(2)] + [pod(f"b{n}", "3", **ON_BIG) for n in range(4)]
    of = case(*pods, groups=groups, daemonsets=[AGENT])
    assert nodes_and_left(of, oracle, tmp_path) == (6, 0)


def test_whom_a_daemon_sets_pod_may_let_in_is_left_out_without_a_proof_and_with_that_reason(
    oracle: Path, tmp_path: Path
) -> None:
    """The scheduler takes it beside the pod of a new node once that runs, and no plan relies on it."""
    beside = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "agent"}}, "namespaceSelector": {}}
    asks = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}}
    daemons = [daemon_set("agent", "100m", labels={"app": "agent"})]
    of = case(pod("a", affinity=asks), daemonsets=daemons)
    found = planned(of, tmp_path)
    with KubeScheduler(oracle) as scheduler:
        assert scheduler.ask(question(of, found, nominated=True))["takes"] == {"default/a": ["empty-g"]}
    (left,) = found.plan.unplaced
    assert found.plan.certificate.unserved_unproven == left.count == 1
    assert "DaemonSet" in left.reasons[0]
    elsewhere = case(pod("a", affinity=asks), daemonsets=[daemon_set("agent", "100m")])
    assert planned(elsewhere, tmp_path).plan.certificate.unserved_unproven == 0
