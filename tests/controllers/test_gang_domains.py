"""Gangs that ask for one topology domain, from pods and PodGroups to bound pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.topology import PREFERRED, REQUIRED, SLICE_REQUIRED, SLICE_SIZE, WORKLOAD
from cagrpc.controllers.settings import ConsolidationMode, ConsolidationSettings
from cagrpc.fleet.model import Phase
from solver.model import Limit, NewDomains, NodeGroup
from tests.support.cluster import NAMESPACE, NODES, path_of
from tests.support.fleet import group
from tests.support.world import NewWorld, World

RACK, BLOCK = "example.com/rack", "example.com/block"
JOB = f"Job/{NAMESPACE}/train"


def rack(name: str, most: int = 2, **labels: str) -> NodeGroup:
    return group(name, cpu=4000, max_size=most, labels={RACK: name, **labels})


def new(name: str, price: float = 1.0, most: int = 100) -> NodeGroup:
    return group(name, cpu=4000, max_size=100, price=price, new_domains=NewDomains((RACK,), most))


def gang(world: World, count: int, name: str = "a", **annotations: str) -> list[str]:
    asked = annotations or {REQUIRED: RACK}
    return world.cluster.add(count, cpu=2000, annotations={WORKLOAD: name, **asked})


def domains(world: World, uids: list[str], key: str = RACK) -> set[str]:
    nodes = world.cluster.nodes()
    return {nodes[world.cluster.node_of(uid)]["metadata"]["labels"][key] for uid in uids}


@pytest.fixture(params=["annotation", "PodGroup v1alpha2", "PodGroup v1alpha3", "PodGroup v1beta1"])
def asking(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_gang_comes_whole_in_one_known_domain(new_world: NewWorld, asking: str) -> None:
    world = new_world(rack("r1", 1), rack("r2"), rack("r3", 1))
    if asking == "annotation":
        pods = gang(world, 4)
    else:
        api = f"/apis/scheduling.k8s.io/{asking.partition(' ')[2]}/podgroups"
        policy = {"schedulingPolicy": {"gang": {"minCount": 4}}}
        constraints = {"schedulingConstraints": {"topology": [{"key": RACK}]}}
        world.api.put(
            path_of(api, "g"), {"metadata": {"namespace": NAMESPACE, "name": "g"}, "spec": {**policy, **constraints}}
        )
        pods = world.cluster.add(4, cpu=2000)
        for uid in pods:
            world.api.change(world.cluster.paths[uid], spec={"schedulingGroup": {"podGroupName": "g"}})
    world.run(60)
    assert not world.cluster.pending()
    assert domains(world, pods) == {"r2"}
    assert world.targets() == {"r2": 2}


def test_one_that_no_domain_holds_waits_and_is_told_why(new_world: NewWorld) -> None:
    world = new_world(rack("r1"), rack("r2"))
    gang(world, 6)
    world.run(30)
    assert not world.targets()
    asked = "it has a required topology of one example.com/rack for the gang"
    assert any(asked in each.text for each in world.events())


def test_its_pods_that_are_made_anew_stay_in_the_domain_of_the_others(new_world: NewWorld) -> None:
    world = new_world(rack("r1"), rack("r2"), rack("r3"))
    pods = gang(world, 2)
    world.run(60)
    (first,) = domains(world, pods)
    more = gang(world, 2)
    world.run(60)
    assert domains(world, [*pods, *more]) == {first}


def test_slices_are_each_in_one_rack_and_all_of_them_in_one_block(new_world: NewWorld) -> None:
    blocks = {"r1": "b1", "r2": "b1", "r3": "b2", "r4": "b2"}
    world = new_world(*(rack(name, 2 if block == "b2" else 1, **{BLOCK: block}) for name, block in blocks.items()))
    asked = {WORKLOAD: "a", REQUIRED: BLOCK, SLICE_REQUIRED: RACK, SLICE_SIZE: "3"}
    pods = [
        *(
            uid
            for index in range(6)
            for uid in world.cluster.add(
                cpu=2000, annotations=asked, labels={"batch.kubernetes.io/job-completion-index": str(index)}
            )
        )
    ]
    world.run(60)
    assert domains(world, pods, BLOCK) == {"b2"}
    assert len(domains(world, pods[:3])) == len(domains(world, pods[3:])) == 1
    assert domains(world, pods) == {"r3", "r4"}


def test_a_preferred_domain_is_had_where_it_can_be_and_given_up_where_not(new_world: NewWorld) -> None:
    world = new_world(rack("r1"), rack("r2"))
    together = gang(world, 3, "a", **{PREFERRED: RACK})
    world.run(60)
    assert len(domains(world, together)) == 1
    apart = gang(world, 4, "b", **{PREFERRED: RACK})
    world.run(60)
    assert not world.cluster.pending()
    assert len(domains(world, apart)) == 2


@pytest.mark.parametrize("scattered", [False, True])
def test_a_new_domain_that_is_preferred_comes_as_one_increment_and_is_not_insisted_on(
    new_world: NewWorld, *, scattered: bool
) -> None:
    world = new_world(*(replace(rack(name, 1), price_usd_per_hour=0.9) for name in ("r1", "r2")), new("u"))
    if scattered:
        world.cluster.scattered = {"u"}
    pods = gang(world, 4, "a", **{PREFERRED: RACK})
    world.run(60)
    assert not world.cluster.pending()
    assert (world.targets(), sizes(world)) == ({"u": 2}, [2])
    assert len(domains(world, pods)) == 1 + scattered


def test_pods_of_one_controller_are_a_gang_where_they_ask_for_one_domain(new_world: NewWorld) -> None:
    world = new_world(rack("r1", 1), rack("r2", 1))
    world.cluster.add(3, cpu=2000, owner=JOB, annotations={REQUIRED: RACK})
    world.run(30)
    assert not world.targets()


@pytest.mark.parametrize("size", ["cagrpc.io/gang-min-count", "kueue.x-k8s.io/pod-group-total-count", "its controller"])
def test_a_gang_whose_pods_come_one_by_one_waits_until_all_are_there(new_world: NewWorld, size: str) -> None:
    """Else all gangs would begin in the first domain with room for one pod, and none would ever be whole there."""
    world = new_world(rack("r1", 1), rack("r2", 2), rack("r3", 2))
    replicas = path_of("/apis/apps/v1/replicasets", "train")
    if size == "its controller":
        wanted = {"replicas": 4, "template": {"metadata": {}, "spec": {"containers": []}}}
        world.api.put(replicas, {"metadata": {"namespace": NAMESPACE, "name": "train"}, "spec": wanted, "status": {}})
        said, owner = {REQUIRED: RACK}, f"ReplicaSet/{NAMESPACE}/train"
    else:
        said, owner = {WORKLOAD: "a", REQUIRED: RACK, size: "4"}, ""
    pods = []
    for _ in range(3):
        pods += world.cluster.add(cpu=2000, annotations=said, owner=owner)
        world.run(20)
        assert not world.targets()
    assert any("is not complete: it has 3 of 4 pods" in each.text for each in world.events())
    if size == "its controller":
        world.api.change(replicas, spec={"replicas": 3})
    else:
        pods += world.cluster.add(cpu=2000, annotations=said)
    world.run(60)
    assert not world.cluster.pending()
    assert len(domains(world, pods)) == 1
    assert world.targets() in ({"r2": 2}, {"r3": 2})


def test_a_part_of_a_composite_group_is_left_out_with_that_reason(new_world: NewWorld) -> None:
    world = new_world(rack("r1"))
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}, "parentCompositePodGroupName": "all"}
    path = path_of("/apis/scheduling.k8s.io/v1beta1/podgroups", "g")
    world.api.put(path, {"metadata": {"namespace": NAMESPACE, "name": "g"}, "spec": spec})
    (uid,) = world.cluster.add(cpu=2000)
    world.api.change(world.cluster.paths[uid], spec={"schedulingGroup": {"podGroupName": "g"}})
    world.run(30)
    assert not world.targets()
    assert any(
        "is part of the CompositePodGroup all, and those are not supported" in each.text for each in world.events()
    )


# Domains that come with the nodes


def test_each_increment_is_one_domain_and_its_nodes_wait_until_they_say_which(new_world: NewWorld) -> None:
    world = new_world(new("u", most=2))
    first, second = gang(world, 4, "a"), gang(world, 3, "b")
    world.run(3)
    assert sorted(sum(each.increment.deltas.values()) for each in world.increments()) == [2, 2]
    world.run(60)
    assert not world.cluster.pending()
    assert len(domains(world, first)) == len(domains(world, second)) == 1


def test_a_gang_whose_nodes_came_scattered_is_rolled_back_and_served_elsewhere(new_world: NewWorld) -> None:
    world = new_world(new("u"), new("v", price=2.0))
    world.cluster.scattered = {"u"}
    pods = gang(world, 4)
    world.run(120)
    (first, *_) = world.increments()
    assert first.phase is Phase.ROLLED_BACK
    assert "the nodes of u had to be in one domain of example.com/rack, but are in" in first.message
    assert first.short_groups == ("u",)
    assert not world.cluster.pending()
    assert len(domains(world, pods)) == 1
    assert world.targets() == {"v": 2}


def test_pods_that_ask_for_no_domain_do_not_care_where_their_nodes_are(new_world: NewWorld) -> None:
    world = new_world(new("u"))
    world.cluster.scattered = {"u"}
    world.cluster.add(4, cpu=2000)
    world.run(60)
    assert not world.cluster.pending()


def test_what_is_in_flight_for_a_gang_is_known_after_a_restart(new_world: NewWorld) -> None:
    world = new_world(new("u", most=3))
    pods = gang(world, 4)
    world.run(3)
    world.restart()
    world.run(60)
    assert len(domains(world, pods)) == 1
    assert world.targets() == {"u": 2}


def test_limits_over_domains_are_kept(new_world: NewWorld) -> None:
    limit = Limit("topology domain b1", {"nodes": 1}, node_groups=frozenset({"r1"}))
    world = new_world(rack("r1"), rack("r2"), limits=[limit])
    pods = gang(world, 3)
    world.run(60)
    assert domains(world, pods) == {"r2"}


def test_a_gang_by_label_is_in_one_domain_where_its_pods_ask_for_it(new_world: NewWorld) -> None:
    world = new_world(rack("r1", 1), rack("r2"))
    pods = world.cluster.add(4, cpu=2000, labels={DEFAULT_GANG_LABEL: "g"}, annotations={REQUIRED: RACK})
    world.run(60)
    assert domains(world, pods) == {"r2"}


# Nodes that must go


def interrupt(world: World, name: str = "") -> str:
    """Let the cloud say that it takes a node soon, the first with pods without a name; return its name."""
    busy = sorted({world.cluster.node_of(uid) for uid in world.cluster.pods()} - {""})
    name = name or busy[0]
    node = world.cluster.nodes()[name]
    taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
    world.api.change(f"{NODES}/{name}", spec={"taints": [*node["spec"].get("taints", ()), taint]})
    return name


def sizes(world: World) -> list[int]:
    """Return how many nodes each increment has."""
    return [sum(each.increment.deltas.values()) for each in world.increments()]


def training(new_world: NewWorld, *groups: NodeGroup) -> World:
    """A gang on two nodes."""
    world = new_world(*groups, consolidation=ConsolidationSettings(ConsolidationMode.ON))
    world.cluster.workload("train", 4, cpu=2000, annotations={WORKLOAD: "a", REQUIRED: RACK})
    world.run(60)
    assert not world.cluster.pending()
    return world


def test_only_the_node_that_must_go_is_replaced_where_the_domain_has_room(new_world: NewWorld) -> None:
    world = training(new_world, rack("r1", 3), rack("r2", 3))
    (before,) = domains(world, [*world.cluster.pods()])
    stays = sorted(world.cluster.nodes())
    stays.remove(interrupt(world))
    world.run(120)
    assert not world.cluster.pending()
    assert domains(world, [*world.cluster.pods()]) == {before}
    assert {*stays} < {*world.cluster.nodes()}
    assert sizes(world) == [2, 1]


def test_the_whole_domain_is_replaced_as_one_increment_where_its_nodes_share_their_fate(new_world: NewWorld) -> None:
    world = training(new_world, *(replace(rack(name, 3), shared_fate=RACK) for name in ("r1", "r2")))
    (before,) = domains(world, [*world.cluster.pods()])
    interrupt(world)
    world.run(120)
    assert not world.cluster.pending()
    assert domains(world, [*world.cluster.pods()]).isdisjoint({before})
    assert sizes(world) == [2, 2]
    (disruption,) = world.fleet.snapshot.disruptions
    assert len(disruption.nodes) == 2


def test_a_spare_comes_with_a_gang_and_takes_the_pods_of_a_node_that_must_go(new_world: NewWorld) -> None:
    world = training(new_world, replace(new("u"), spares=1, shared_fate=RACK))
    (before,) = domains(world, [*world.cluster.pods()])
    assert sizes(world) == [3]
    world.run(300)
    assert world.targets() == {"u": 3}
    interrupt(world)
    world.run(120)
    assert not world.cluster.pending()
    assert domains(world, [*world.cluster.pods()]) == {before}
    assert (sizes(world), world.targets()) == ([3], {"u": 2})
    interrupt(world)
    world.run(180)
    assert not world.cluster.pending()
    (after,) = domains(world, [*world.cluster.pods()])
    assert after != before
    assert (sizes(world), world.targets()) == ([3, 3], {"u": 3})


@pytest.mark.parametrize("when", ["coming", "there"])
def test_pods_of_others_are_not_planned_onto_a_spare(new_world: NewWorld, when: str) -> None:
    world = new_world(replace(new("u"), spares=1))
    gang(world, 4, "a")
    world.run(3 if when == "coming" else 60)
    world.cluster.scheduling = False
    gang(world, 2, "b")
    world.run(10)
    assert sizes(world) == [3, 2]


def test_a_spare_takes_the_pods_of_a_node_that_is_gone(new_world: NewWorld) -> None:
    world = training(new_world, replace(rack("r1", 3), spares=1), rack("r2", 9))
    (before,) = domains(world, [*world.cluster.pods()])
    assert (before, sizes(world)) == ("r1", [3])
    world.cluster.scheduling = False
    world.cluster.vanish(next(iter({world.cluster.node_of(uid) for uid in world.cluster.pods()})))
    world.run(60)
    assert len(world.cluster.pending()) == 2
    world.cluster.scheduling = True
    world.run(60)
    assert not world.cluster.pending()
    assert domains(world, [*world.cluster.pods()]) == {"r1"}
    assert sizes(world) == [3]


def test_a_spare_goes_when_its_domain_is_empty(new_world: NewWorld) -> None:
    world = training(new_world, replace(new("u"), spares=1))
    world.cluster.workload("train", 0, cpu=2000)
    world.cluster.delete(*world.cluster.pods())
    world.run(1000)
    assert not world.targets()


def test_a_gang_of_which_one_node_must_go_moves_whole_where_its_domain_has_no_room(new_world: NewWorld) -> None:
    """What replaces it is one increment, and comes first."""
    world = new_world(rack("r1"), rack("r2"), rack("r3", 1), consolidation=ConsolidationSettings(ConsolidationMode.ON))
    world.cluster.workload("train", 4, cpu=2000, annotations={WORKLOAD: "a", REQUIRED: RACK})
    world.run(60)
    assert domains(world, [*world.cluster.pods()]) == {"r1"}
    interrupt(world)
    world.run(120)
    assert not world.cluster.pending()
    assert domains(world, [*world.cluster.pods()]) == {"r2"}
    assert world.targets() == {"r2": 2}
    (disruption,) = world.fleet.snapshot.disruptions
    assert len(disruption.nodes) == 2
    assert [sum(each.increment.deltas.values()) for each in world.increments()] == [2, 2]


@pytest.mark.parametrize("scattered", [False, True])
def test_it_moves_to_a_domain_that_comes_with_its_nodes_and_stays_where_these_come_scattered(
    new_world: NewWorld, *, scattered: bool
) -> None:
    world = new_world(new("u"), consolidation=ConsolidationSettings(ConsolidationMode.ON))
    world.cluster.workload("train", 4, cpu=2000, annotations={WORKLOAD: "a", REQUIRED: RACK})
    world.run(60)
    (before,) = domains(world, [*world.cluster.pods()])
    if scattered:
        world.cluster.scattered = {"u"}
    interrupt(world)
    world.run(120)
    assert not world.cluster.pending()
    (after,) = domains(world, [*world.cluster.pods()])
    assert (after == before) is scattered
    assert world.targets() == {"u": 2}
    assert [each.phase for each in world.increments()] == [Phase.DONE, Phase.ROLLED_BACK if scattered else Phase.DONE]
