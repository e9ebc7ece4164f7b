"""The question of consolidation: what stands, what may be moved, and why the rest may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cagrpc.api.core.movability import StaysBecause
from cagrpc.errors import InvalidInput
from cagrpc.report.consolidation import MovingQuestion
from solver.consolidation.model import DisruptionReason, StandingNode
from solver.model import CPU, NODES, PODS
from tests.report.clusters import Document, budget, daemons, half_empty, node, pod
from tests.report.questions import asked
from tests.support import storage
from tests.support.devices import claim, claim_template, device_class, gpus

LATELY = "2027-01-15T07:59:00Z"
"""A minute before the report."""


def standing(found: MovingQuestion, name: str) -> StandingNode:
    return next(each for each in found.problem.nodes if each.node.name == name)


def reasons(found: MovingQuestion) -> dict[str, list[tuple[StaysBecause, int]]]:
    return {
        name: [(because, len(pods)) for (because, _), pods in stays.items()] for name, stays in found.obstacles.items()
    }


def test_nodes_stand_with_what_runs_on_them(tmp_path: Path) -> None:
    found = asked(tmp_path, half_empty())
    assert not found.obstacles
    n4 = standing(found, "n4")
    assert sorted((each.name, each.count) for each in n4.pods) == [("shop/db-1", 1), ("shop/web-4", 1)]
    assert n4.node.free[CPU] == 3920 - 2 * 1000 - 100
    assert n4.node.free[PODS] == 58 - 3
    assert sum(each.count for each in n4.node.running) == 3
    groups = {each.id: each for each in found.problem.node_groups}
    assert groups[n4.node_group].target_size == 3
    assert sum(each.target_size for each in groups.values()) == 7
    assert not standing(found, "n0").pods


def test_nodes_that_are_not_compared_stay_as_they_are(tmp_path: Path) -> None:
    items = [node("a"), node("odd", "made-here"), pod("web", "a"), pod("odd", "odd")]
    odd = standing(asked(tmp_path, items), "odd")
    assert (odd.node_group, odd.kept, odd.takes_pods) == ("", "no price", False)


def test_pods_do_not_move_to_nodes_that_are_cordoned_or_not_ready(tmp_path: Path) -> None:
    sick = node("sick")
    sick["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    found = asked(tmp_path, [node("a"), node("cordoned", unschedulable=True), sick, pod("web", "a")])
    assert {each.node.name: each.takes_pods for each in found.problem.nodes} == {
        "a": True, "cordoned": False, "sick": False,
    }  # fmt: skip
    assert reasons(found) == {"sick": [(StaysBecause.NOT_READY, 0)]}


def test_a_node_that_is_younger_than_the_minimum_age_stays(tmp_path: Path) -> None:
    young = node("young")
    young["metadata"]["creationTimestamp"] = LATELY
    found = asked(tmp_path, [node("a"), young, pod("web", "young")])
    assert reasons(found) == {"young": [(StaysBecause.YOUNG, 0)]}


@pytest.mark.parametrize("taint", ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"])
def test_nodes_that_somebody_takes_away_are_left_to_him(taint: str, tmp_path: Path) -> None:
    going = node("going", taints=[{"key": taint, "effect": "NoSchedule"}])
    found = asked(tmp_path, [node("a"), going, pod("web", "going")])
    assert reasons(found) == {"going": [(StaysBecause.GOING, 0)]}
    assert not standing(found, "going").takes_pods


def interrupted(name: str, **more: Any) -> Document:
    return node(name, taints=[{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}], **more)


def with_conditions(document: Document, *conditions: tuple[str, str, str]) -> Document:
    document["status"]["conditions"] = [
        {"type": kind, "status": status, "lastTransitionTime": since} for kind, status, since in conditions
    ]
    return document


def test_nodes_that_their_cloud_takes_or_that_have_gone_bad_must_go(tmp_path: Path) -> None:
    long_ago = "2027-01-15T07:00:00Z"
    bad = with_conditions(node("bad"), ("Ready", "Unknown", long_ago))
    announced = with_conditions(node("announced"), ("Ready", "True", long_ago), ("PreemptionScheduled", "True", LATELY))
    lately = with_conditions(node("lately"), ("Ready", "Unknown", LATELY))
    others = [node(f"n{number}") for number in range(6)]
    found = asked(tmp_path, [interrupted("spot"), bad, announced, lately, *others, pod("web", "spot")])
    assert {each.node.name: each.must_go for each in found.problem.nodes if each.must_go} == {
        "spot": DisruptionReason.INTERRUPTED,
        "announced": DisruptionReason.INTERRUPTED,
        "bad": DisruptionReason.UNHEALTHY,
    }
    assert {each.node.name for each in found.problem.nodes if not each.takes_pods} == {
        "spot", "announced", "bad", "lately",
    }  # fmt: skip
    assert reasons(found) == {"lately": [(StaysBecause.NOT_READY, 0)]}
    (group,) = {each.node_group for each in found.problem.nodes}
    assert not next(each for each in found.problem.node_groups if each.id == group).taints


def test_where_many_are_bad_it_is_not_the_nodes(tmp_path: Path) -> None:
    bad = [with_conditions(node(f"bad{number}"), ("Ready", "False", "2027-01-15T07:00:00Z")) for number in range(2)]
    found = asked(tmp_path, [*bad, node("a"), pod("web", "a")])
    assert not [each for each in found.problem.nodes if each.must_go]
    assert reasons(found) == {each["metadata"]["name"]: [(StaysBecause.NOT_READY, 0)] for each in bad}


def test_of_a_node_that_must_go_pods_are_moved_or_left_whatever_keeps_them(tmp_path: Path) -> None:
    no = annotated("karpenter.sh/do-not-disrupt", "true")
    member = pod("member", "spot", **no)
    other = pod("other", "a", app="other")
    for each in (member, other):
        each["metadata"]["labels"]["gang"] = "g"
    pods = [pod("web", "spot", app="web", **no), orphan("alone", "spot"), member, other]
    found = asked(tmp_path, [interrupted("spot"), node("a"), *pods, budget("none", "web", 0)])
    assert found.obstacles == {}
    assert standing(found, "spot").kept == ""
    assert sorted(each.count for each in standing(found, "spot").pods) == [1, 1], "nobody makes another of the orphan"


def test_preferences_never_prevent_a_move(tmp_path: Path) -> None:
    labels = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname", "maxSkew": 1}
    spread = [{**labels, "whenUnsatisfiable": "ScheduleAnyway"}]
    found = asked(tmp_path, [node("a"), pod("web", "a", topologySpreadConstraints=spread)])
    assert [each.spec.topology_spread for each in standing(found, "a").pods] == [()]


def orphan(name: str, on: str) -> Document:
    alone = pod(name, on)
    del alone["metadata"]["ownerReferences"]
    return alone


def annotated(key: str, value: str) -> dict[str, Any]:
    return {"annotations": {key: value}}


KEEPS: dict[StaysBecause, dict[str, Any]] = {
    StaysBecause.NOT_SAFE: annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    StaysBecause.DO_NOT_DISRUPT: annotated("karpenter.sh/do-not-disrupt", "true"),
    StaysBecause.REQUEST: {
        "annotations": {
            "autoscaling.x-k8s.io/consume-provisioning-request": "mine",
            "autoscaling.x-k8s.io/provisioning-class-name": "check-capacity.autoscaling.x-k8s.io",
        }
    },
    StaysBecause.LOCAL_STORAGE: {"volumes": [{"name": "scratch", "emptyDir": {}}]},
    StaysBecause.ENDS: {"owner": "Job", "restartPolicy": "Never"},
    StaysBecause.SYSTEM: {"namespace": "kube-system", "created": LATELY},
}


@pytest.mark.parametrize("because", KEEPS)
def test_pods_keep_their_nodes(because: StaysBecause, tmp_path: Path) -> None:
    items = [node("a"), node("b"), pod("stays", "a", **KEEPS[because]), pod("other", "a"), pod("moves", "b")]
    found = asked(tmp_path, items)
    assert reasons(found) == {"a": [(because, 1)]}
    assert standing(found, "a").kept
    assert not standing(found, "b").kept
    ((pod_that_stays,),) = found.obstacles["a"].values()
    assert pod_that_stays.ref.name == "stays"


MOVES: dict[str, dict[str, Any]] = {
    "a directory in memory": {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]},
    "local storage that may be lost": {
        "volumes": [{"name": "scratch", "hostPath": {"path": "/tmp"}}],
        **annotated("cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes", "scratch"),
    },
    "an annotation whose time is over": {
        **annotated("karpenter.sh/do-not-disrupt", "30s"),
        "started": LATELY,
    },
    "kube-system for long": {"namespace": "kube-system", "created": "2027-01-01T00:00:00Z"},
}


@pytest.mark.parametrize("case", MOVES)
def test_pods_move_that_only_look_kept(case: str, tmp_path: Path) -> None:
    assert not asked(tmp_path, [node("a"), pod("web", "a", **MOVES[case])]).obstacles


def test_pods_without_a_controller_stay(tmp_path: Path) -> None:
    found = asked(tmp_path, [node("a"), *daemons([node("a")]), orphan("alone", "a")])
    assert reasons(found) == {"a": [(StaysBecause.NO_CONTROLLER, 1)]}


def test_nodes_say_themselves_that_they_stay(tmp_path: Path) -> None:
    nodes = [node(name) for name in ("karpenter", "autoscaler", "ours")]
    off = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
    nodes[0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    nodes[1]["metadata"]["annotations"] = {off: "true"}
    nodes[2]["metadata"]["annotations"] = {off: "true", "cagrpc.io/scale-down-disabled": "in use"}
    found = asked(tmp_path, nodes)
    assert reasons(found) == {"karpenter": [(StaysBecause.NODE, 0)], "autoscaler": [(StaysBecause.NODE, 0)]}


def test_budgets_keep_pods_as_the_eviction_api_does(tmp_path: Path) -> None:
    nodes = [node(name) for name in ("none", "some", "two", "elsewhere")]
    pods = [
        pod("none", "none", app="none"),
        pod("some", "some", app="some"),
        pod("two", "two", app="two"),
        pod("elsewhere", "elsewhere", app="none", namespace="other"),
    ]
    budgets = [budget("b-none", "none", 0), budget("b-some", "some", 1)]
    budgets += [budget("b-two", "two", 1), budget("b-more", "two", 1)]
    found = asked(tmp_path, [*nodes, *pods, *budgets])
    assert reasons(found) == {"none": [(StaysBecause.BUDGET, 1)], "two": [(StaysBecause.BUDGETS, 1)]}
    ((_, budgets_of_two),) = found.obstacles["two"]
    assert budgets_of_two == ("shop/b-more", "shop/b-two")


def test_budgets_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broken = budget("broken", "web", 0)
    broken["status"]["disruptionsAllowed"] = "many"
    with pytest.raises(
        InvalidInput, match=r"shop/broken\): status.disruptionsAllowed: expected a whole number, found \"many\""
    ):
        asked(tmp_path, [node("a"), pod("web", "a"), broken])


def test_a_gang_of_which_a_pod_stays_keeps_all_its_nodes(tmp_path: Path) -> None:
    nodes = [node(name) for name in "abcd"]

    def member(name: str, on: str, gang: str, **more: Any) -> Document:
        found = pod(name, on, **more)
        found["metadata"]["labels"]["gang"] = gang
        return found

    no = annotated("karpenter.sh/do-not-disrupt", "true")
    pods = [member("g-0", "a", "g", **no), member("g-1", "b", "g"), member("h-0", "b", "h"), member("h-1", "c", "h")]
    found = asked(tmp_path, [*nodes, *pods, member("free-0", "d", "free"), member("free-1", "d", "free")])
    assert {name: {because for because, _ in of} for name, of in reasons(found).items()} == {
        "a": {StaysBecause.DO_NOT_DISRUPT},
        "b": {StaysBecause.GANG},
        "c": {StaysBecause.GANG},
    }
    assert {each.gang for each in standing(found, "d").pods} == {"podgroup.scheduling.x-k8s.io shop/free"}


def test_a_volume_of_one_node_keeps_its_pod(tmp_path: Path) -> None:
    where = [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]
    claim = {"namespace": "shop", "name": "disk"}
    same = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]}
    volume = {
        "kind": "PersistentVolume",
        "metadata": {"name": "disk"},
        "spec": {
            **same,
            "capacity": {"storage": "1Gi"},
            "local": {"path": "/disk"},
            "claimRef": claim,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": where}]}},
        },
        "status": {"phase": "Bound"},
    }
    bound = {
        "kind": "PersistentVolumeClaim",
        "metadata": {**claim, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {**same, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "disk"},
        "status": {"phase": "Bound"},
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}]
    found = asked(tmp_path, [node("a"), pod("db", "a", volumes=volumes), volume, bound])
    assert reasons(found) == {"a": [(StaysBecause.UNPLANNED, 1)]}


def test_devices_that_pods_have_are_not_free(tmp_path: Path) -> None:
    items = [node("a"), node("b"), device_class(), claim_template(), gpus(2, "a"), gpus(2, "b")]
    claims: list[Document] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    holder = pod("p", "a", namespace="default", resourceClaims=claims)
    holder["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "p-gpu"}]
    of_pod: Document = {"ownerReferences": [{"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]}
    found = asked(tmp_path, [*items, claim("p-gpu", "gpu-0", on="a", **of_pod), holder])
    assert not found.obstacles
    (moving,) = standing(found, "a").pods
    assert len(moving.spec.claims) == 1
    free = [sum(each.count for each in standing(found, name).node.devices) for name in "ab"]
    assert free == [1, 2]


def test_a_claim_by_name_stays_where_it_is_allocated(tmp_path: Path) -> None:
    items = [node("a"), node("b"), device_class(), gpus(2, "a"), gpus(2, "b"), claim("one", "gpu-0", on="a")]
    claims: list[Document] = [{"name": "gpu", "resourceClaimName": "one"}]
    found = asked(tmp_path, [*items, pod("p", "a", namespace="default", resourceClaims=claims)])
    assert reasons(found) == {"a": [(StaysBecause.UNPLANNED, 1)]}


def test_volumes_count_on_the_nodes_that_attach_them(tmp_path: Path) -> None:
    shared = {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}
    items: list[Document] = [
        {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": "Immediate"},
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "namespace": "shop",
                "name": "disk",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {**shared, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "disk"},
            "status": {"phase": "Bound"},
        },
        {
            "kind": "PersistentVolume",
            "metadata": {"name": "disk"},
            "spec": {
                **shared,
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "shop", "name": "disk"},
                "csi": {"driver": "d", "volumeHandle": "disk"},
            },
            "status": {"phase": "Bound"},
        },
    ]
    limit = {"drivers": [{"name": "d", "nodeID": "x", "allocatable": {"count": 3}}]}
    items += [{"kind": "CSINode", "metadata": {"name": name}, "spec": limit} for name in "ab"]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}]
    found = asked(tmp_path, [node("a"), node("b"), *items, pod("db", "a", volumes=volumes)])
    (moving,) = standing(found, "a").pods
    assert dict(moving.spec.requests)["attachable-volumes-csi-d"] == 1
    left = [standing(found, name).node.free["attachable-volumes-csi-d"] for name in "ab"]
    assert left == [2, 3]


def test_a_volume_that_running_pods_share_is_one_to_their_node(tmp_path: Path) -> None:
    items: list[Document] = [storage.storage_class(), storage.claim("many", "v", modes=["ReadWriteMany"])]
    items += [storage.volume("v", of="many", driver=storage.EBS), *(storage.csi_node(name, count=3) for name in "ab")]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "many"}}]
    pods = [pod(name, on, namespace="default", volumes=volumes) for name, on in (("p", "a"), ("q", "a"), ("r", "b"))]
    found = asked(tmp_path, [node("a"), node("b"), *items, *pods])
    attach = f"attachable-volumes-csi-{storage.EBS}"
    moving = [each for name in "ab" for each in standing(found, name).pods]
    assert {each.spec.shared_volumes for each in moving} == {((attach, "v"),)}
    assert [standing(found, name).node.free[attach] for name in "ab"] == [2, 2]


def test_nodes_are_of_the_groups_that_are_offered_where_these_have_them(tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    kind = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.xlarge"]}
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]}
    limits = {"nodes": 5}
    pools.write_text(json.dumps({"name": "general", "weight": 7, "requirements": [kind, zone], "limits": limits}))
    nodes = [node("same", zone="zone-a"), node("large", "r7i.4xlarge"), node("theirs", pool="theirs")]
    pods = [pod(f"web-{name}", name) for name in ("same", "large", "theirs")]
    found = asked(tmp_path, [*nodes, *pods], pools)
    groups = {each.id: each for each in found.problem.node_groups}
    same, large, theirs = (groups[standing(found, name).node_group] for name in ("same", "large", "theirs"))
    assert (same.weight, same.target_size) == (7, 1)
    assert same.max_size > 1
    assert (large.weight, large.target_size, large.max_size) == (7, 1, 1)
    assert (theirs.weight, theirs.target_size, theirs.max_size) == (0, 1, 1)
    (limit,) = found.problem.limits
    assert limit.used[NODES] == 2
    assert limit.node_groups == frozenset(each for each, of in groups.items() if of.provisioner == "general")
