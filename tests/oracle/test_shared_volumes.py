"""Plans for pods that share volumes, on nodes that attach few, as the scheduler's own plug-ins judge them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.hunted.cases import Case, planned, question
from tests.oracle import KubeScheduler
from tests.support.storage import claim, csi_node, storage_class, volume

EBS = "ebs.csi.aws.com"


def _pod(name: str, *claims: str, node: str = "") -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if node:
        spec["nodeName"] = node
    status = {"status": {"phase": "Running"}} if node else {}
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec, **status}


def _case(
    pending: list[Any], *, many: str = "", once: str = "", standing: dict[str, int] | None = None, **more: Any
) -> Case:
    """Return a case with bound claims by mode, nodes by the volumes that each may attach, and a group that attaches
    one."""
    objects = [storage_class()]
    for modes, names in (("ReadWriteMany", many), ("ReadWriteOnce", once)):
        for name in names:
            objects += [claim(name, f"pv-{name}", modes=[modes]), volume(f"pv-{name}", of=name, driver=EBS)]
    nodes = []
    for name, count in (standing or {}).items():
        offered = {"cpu": "8", "memory": "16Gi", "pods": "20"}
        labels = {"kubernetes.io/hostname": name}
        nodes.append(
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": {
                    "capacity": offered,
                    "allocatable": offered,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
        objects.append(csi_node(name, count=count))
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": 20, f"attachable-volumes-csi-{EBS}": 1}
    group = {"id": "g", "allocatable": allocatable, "price_usd_per_hour": 1.0, "max_size": 3}
    empty: dict[str, Any] = {"namespaces": [], "bound": [], "daemonsets": []}
    pools = [{"name": "p", "node_groups": [group]}]
    return {**empty, "nodes": nodes, "pending": pending, "objects": objects, "provisioners": pools, **more}


def _of_one_handle(case: Case) -> Case:
    """Return the case in which all volumes are one to their driver."""
    for each in case["objects"]:
        if each["kind"] == "PersistentVolume":
            each["spec"]["csi"]["volumeHandle"] = "disk"
    return case


CASES = {
    "eight pods of one volume, one attachment": (_case([_pod(f"p{n}", "a") for n in range(8)], many="a"), 1),
    "two volumes, one attachment on a node": (
        _case([_pod(f"p{n}", "ab"[n % 2]) for n in range(8)], many="ab"), 2,
    ),
    "a volume that a full node has attached": (
        _case([_pod("p", "a"), _pod("q", "a")], many="a", standing={"n": 1}, bound=[_pod("r", "a", node="n")]), 0,
    ),
    "beside one of the pod's own": (
        _case([_pod("p", "a"), _pod("q", "a", "b")], many="ab", standing={"n": 2}), 0,
    ),
    "claims of volumes with one handle": (
        _of_one_handle(_case([_pod(f"p{n}", "abc"[n % 3]) for n in range(6)], many="abc")), 1,
    ),
    "a volume with one handle that a full node has attached": (
        _of_one_handle(_case([_pod("p", "a")], many="ab", standing={"n": 1}, bound=[_pod("r", "b", node="n")])), 0,
    ),
    "pods of one node": (_case([_pod(f"p{n}", "a") for n in range(4)], once="a"), 1),
}  # fmt: skip


@pytest.mark.parametrize(("case", "nodes"), CASES.values(), ids=list(CASES))
def test_every_pod_is_planned_and_bound(case: Case, nodes: int, oracle: Path, tmp_path: Path) -> None:
    found = planned(case, tmp_path)
    assert found.plan.unplaced == ()
    assert sum(each.delta for each in found.plan.increments) == nodes
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(case, found, nominated=True))
    assert (answer["refused"], answer["undecided"], answer["stuck"]) == ([], 0, [])


@pytest.mark.parametrize("older", [{"nodeSelector": {"pool": "none"}}, {"priority": -1}], ids=["no node", "priority"])
def test_a_claim_of_one_pod_goes_to_one_that_is_served_and_first(
    older: dict[str, Any], oracle: Path, tmp_path: Path
) -> None:
    pending = [_pod(name, "a") for name in "pqr"]
    pending[0]["spec"] |= older
    for day, each in enumerate(pending, 1):
        each["metadata"]["creationTimestamp"] = f"2026-01-{day:02}T00:00:00Z"
    case = _case(pending, standing={"n": 1})
    case["objects"].extend((claim("a", "pv", modes=["ReadWriteOncePod"]), volume("pv", of="a", driver=EBS)))
    found = planned(case, tmp_path)
    (served,) = found.assigned.existing["n"]
    assert served.name in "qr"
    assert sum(each.delta for each in found.plan.increments) == 0
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(case, found, nominated=True))
    assert (answer["refused"], set(map(tuple, answer["takes"].values()))) == ([], {()})


def test_what_is_left_out_is_taken_by_no_node(oracle: Path, tmp_path: Path) -> None:
    """Three volumes for nodes that attach one: the third is one too many for the two that may be there."""
    case = _case([_pod(f"p{n}", "abc"[n % 3]) for n in range(6)], many="abc")
    case["provisioners"][0]["node_groups"][0]["max_size"] = 2
    found = planned(case, tmp_path)
    assert sum(each.count for each in found.plan.unplaced) == 2
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(case, found, nominated=True))
    assert set(map(tuple, answer["takes"].values())) == {()}
