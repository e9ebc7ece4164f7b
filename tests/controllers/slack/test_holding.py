"""The slack of a cluster: nodes are opened for placeholders once, real pods come first, and what is held is shown,
written, and found again after a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.api.core.slack import MIRROR
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import RequestSettings
from cagrpc.controllers.slack.model import Carrier, SlackSettings, TargetSettings, Window
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import Phase
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.kube.journal.objects import unpack
from cagrpc.runtime.schedules import parse_cron
from solver.model import HOSTNAME, Limit, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from solver.slack.model import Base, Copies, Version
from tests.support.api_server import Refusal
from tests.support.cluster import path_of
from tests.support.fleet import group
from tests.support.requests import RequestWorld
from tests.support.world import NewWorld, World

COMING = 60.0
"""Nodes are there after so long, and all is settled."""
SLACK = "/apis/cagrpc.io/v1alpha1/namespaces/cagrpc/slacks/cagrpc"
POOL = ((NODEPOOL_LABEL, "web"),)


def fixed(count: int, cpu: int = 1000, **more: Any) -> SlackSettings:
    return SlackSettings(targets=(TargetSettings("t", fixed=(Copies("x", PodSpec((("cpu", cpu),)), count),), **more),))


def configure(world: World, slack: SlackSettings) -> None:
    world.settings = replace(world.settings, slack=slack)
    world.restart()


def mirror(world: World, name: str, count: int, spec: PodSpec, namespace: str = "ns") -> None:
    """Mark a Deployment."""
    metadata = {"namespace": namespace, "annotations": {MIRROR: str(count)}}
    template = {"metadata": {"labels": dict(spec.labels)}, "spec": pod_body(spec, "example.com/idle", namespace)}
    path = path_of("/apis/apps/v1/deployments", name, namespace)
    world.api.put(path, {"metadata": metadata, "spec": {"template": template}})


def counted(world: World) -> tuple[int, int, int]:
    """Return how many placeholders are held, left over, and among these were pushed out, which everybody is told."""
    targets, shapes = (world.page("/slack")[what] for what in ("targets", "shapes"))
    found = tuple(sum(each[what] for each in targets) for what in ("held", "left_over", "pushed_out"))
    assert found == tuple(sum(each[what] for each in shapes) for what in ("held", "left_over", "pushed_out"))
    assert found[0] == sum(places(world).values())
    measured = {"held": 0, "waiting": 0, "pushed_out": 0}
    for labels, each in world.metrics()["cagrpc_slack_placeholders"].items():
        (state,) = measured.keys() & set(labels)
        measured[state] += each.value
    assert measured == {"held": found[0], "waiting": found[1] - found[2], "pushed_out": found[2]}
    return found[0], found[1], found[2]


def places(world: World) -> dict[str, int]:
    found: dict[str, int] = {}
    for shape in world.page("/slack")["shapes"]:
        for node, count in shape["nodes"].items():
            found[node] = found.get(node, 0) + count
    return found


def written(world: World) -> Any:
    return world.api.objects[SLACK]["status"]


def writes(world: World) -> int:
    return world.api.requests.count(f"PATCH {SLACK}/status")


def rounds(world: World) -> int:
    return len(world.page("/plans"))


def test_nodes_are_opened_for_placeholders_once(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(6))
    world.run(COMING)
    assert world.targets() == {"a": 2}
    (status,) = world.increments()
    assert status.increment.reason == "6 placeholders of the slack"
    assert counted(world) == (6, 0, 0)
    world.run(300)
    assert len(world.increments()) == rounds(world) == 1


def test_a_burst_that_fits_starts_at_once_and_the_slack_is_restored_by_one_increment(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4))
    world.run(COMING)
    assert world.targets() == {"a": 1}
    world.cluster.add(3)
    world.run(2)
    assert not world.cluster.pending(), "before any new node is there"
    assert counted(world) == (1, 3, 3)
    world.run(COMING)
    assert world.targets() == {"a": 2}
    assert (counted(world), len(world.increments())) == ((4, 0, 0), 2)


def test_without_slack_the_same_burst_waits_for_a_node(new_world: NewWorld) -> None:
    world = new_world(slack=SlackSettings())
    world.run(COMING)
    world.cluster.add(3)
    world.run(2)
    assert len(world.cluster.pending()) == 3
    world.run(COMING)
    assert not world.cluster.pending()


def test_pods_and_placeholders_are_planned_together(new_world: NewWorld) -> None:
    """One large node is cheaper than two small ones; one after the other they would have got these."""
    world = new_world(group("small", price=0.2), group("large", cpu=8000, price=0.3), slack=fixed(4))
    world.cluster.add(4)
    world.run(COMING)
    assert world.targets() == {"large": 1}
    (status,) = world.increments()
    assert status.increment.reason == "4 pods, ns/pod-1 among them; 4 placeholders of the slack"


def test_real_pods_come_first_and_placeholders_without_room_are_reported_apart(new_world: NewWorld) -> None:
    world = new_world(limits=[Limit("nodes", {"nodes": 1})], slack=fixed(4))
    world.cluster.add(3)
    world.run(COMING)
    assert not world.cluster.pending()
    assert world.targets() == {"a": 1}
    assert counted(world)[:2] == (1, 3)
    plan = world.page("/plans")[-1]
    assert [(each["example"], each["count"]) for each in plan["unplaced_placeholders"]] == [("t/fixed/x", 3)]
    assert not plan["unplaced"]
    assert not [each for each in world.events() if each.warning]
    before = rounds(world)
    world.run(120)
    assert rounds(world) <= before + 3, "it is tried again now and then"


def test_while_nodes_come_nothing_more_is_opened(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4))
    world.backend.set_behaviours({"*": Behaviour(boot_seconds=200.0)})
    world.run(150)
    assert (counted(world), world.targets()) == ((0, 4, 0), {"a": 1})
    world.cluster.add(2)  # they take the room of the node that comes, and another one comes for the placeholders
    world.run(20)
    assert world.targets() == {"a": 2}
    world.run(400)
    assert not world.cluster.pending()
    assert (counted(world), world.targets()) == ((4, 0, 0), {"a": 2})


def test_a_shortage_is_waited_out(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(2))
    world.backend.set_behaviours({"*": Behaviour(stock=0)})
    world.run(30)
    assert world.targets() == {}
    world.backend.set_behaviours({"*": Behaviour(boot_seconds=5.0)})
    world.run(600)
    assert (counted(world), world.targets()) == ((2, 0, 0), {"a": 1})


def test_r1_2_after_a_restart_placeholders_are_where_they_were(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(6))
    world.run(COMING)
    world.cluster.add(3)
    world.run(COMING)
    before = places(world)
    world.restart()
    assert places(world) == {}
    world.step()
    assert places(world) == before
    world.run(120)
    assert (places(world), len(world.increments(Phase.DONE))) == (before, 2)


def test_placeholders_that_are_held_stay_when_others_need_a_node(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4, cpu=2000))
    world.run(COMING)
    before = places(world)
    assert sorted(before.values()) == [2, 2]
    configure(world, fixed(5, cpu=2000))
    world.run(COMING)
    assert world.targets() == {"a": 3}
    assert before.items() <= places(world).items()


def test_they_move_rather_than_have_a_node_opened(new_world: NewWorld) -> None:
    """Two of 2 cpu are scattered over nodes with pods of 1 cpu each; one of 3 cpu is wanted beside them."""
    world = new_world(slack=fixed(2, cpu=2000))
    world.cluster.add(1)
    world.run(COMING)
    assert (world.targets(), sorted(places(world).values())) == ({"a": 2}, [1, 1])
    both = (Copies("y", PodSpec((("cpu", 3000),)), 1), Copies("x", PodSpec((("cpu", 2000),)), 2))
    configure(world, SlackSettings(targets=(TargetSettings("t", fixed=both),)))
    world.run(COMING)
    assert (world.targets(), counted(world)) == ({"a": 2}, (3, 0, 0))


def test_a_rate_follows_what_pods_request(new_world: NewWorld) -> None:
    target = TargetSettings("t", 0.5, version=Version.EVEN, base=Base.REQUESTED, granularity=4)
    world = new_world(slack=SlackSettings(targets=(target,)))
    world.run(30)
    assert world.targets() == {}
    pods = world.cluster.add(4)
    world.run(COMING)
    assert (counted(world)[0], world.targets()) == (2, {"a": 2}), "half of 4 cpu, in quarters of a node"
    world.cluster.delete(*pods[:2])
    world.run(5)
    assert counted(world)[0] == 1


def test_a_window_holds_more_while_it_is_open(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(1))
    opens = int(world.clock() % 3600 // 60) + 2
    window = Window(
        parse_cron(f"{opens % 60} * * * *"),
        ZoneInfo("UTC"),
        120.0,
        fixed=(Copies("x", PodSpec((("cpu", 1000),)), 6),),
    )
    configure(world, fixed(1, schedules=(window,)))
    world.run(COMING)
    assert (counted(world)[0], world.targets()) == (1, {"a": 1})
    world.run(120)
    assert (counted(world)[0], world.targets()) == (6, {"a": 2})
    world.run(120)
    assert counted(world)[0] == 1


def test_r8_mirrors_that_keep_apart_have_nodes_of_their_own(new_world: NewWorld) -> None:
    term = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("app", Operator.IN, ("db",)),), ("ns",)))
    world = new_world(slack=SlackSettings())
    mirror(world, "db", 3, PodSpec((("cpu", 500),), labels=(("app", "db"),), pod_anti_affinity=(term,)))
    world.run(COMING)
    assert (world.targets(), sorted(places(world).values())) == ({"a": 3}, [1, 1, 1])


def test_r9_mirrors_select_their_nodes(new_world: NewWorld) -> None:
    groups = [group("a"), group("b", price=9.0, labels={"disk": "ssd"})]
    world = new_world(*groups, slack=SlackSettings())
    mirror(world, "y", 1, PodSpec((("cpu", 500),), node_selector=(("disk", "ssd"),)))
    world.run(COMING)
    assert world.targets() == {"b": 1}


def test_room_reserved_for_requests_holds_no_slack() -> None:
    with RequestWorld(
        group("a"), requests=RequestSettings(), slack=replace(fixed(4), carrier=Carrier.VIRTUAL)
    ) as world:
        world.template("train", cpu=3000)
        world.request("train", ("train", 1))
        world.run(COMING)
        assert sorted(places(world).values()) == [1]
        assert counted(world) == (1, 3, 0)


def test_what_it_costs_is_the_share_of_the_nodes(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(2))
    world.run(COMING)
    half = pytest.approx(group("a").price_usd_per_hour / 2)
    assert [each["cost_usd_per_hour"] for each in world.page("/slack")["targets"]] == [half]
    assert world.metrics()["cagrpc_slack_cost_usd_per_hour"]["t",].value == half
    assert written(world)["costPerHour"] == half


def test_a_namespace_that_mirrors_more_than_it_may_opens_no_more_nodes_and_is_reported(new_world: NewWorld) -> None:
    world = new_world(slack=SlackSettings(mirrors_per_namespace=5))
    for name, count in (("greedy/a", 3), ("greedy/b", 4), ("greedy/c", 1000), ("modest/a", 5)):
        mirror(world, name[-1], count, PodSpec((("cpu", 1000),)), name[:-2])
    world.run(COMING)
    assert (world.targets(), counted(world)[0]) == ({"a": 3}, 10)
    wanted = {each["name"]: each["wanted"] for each in world.page("/slack")["shapes"]}
    at = "mirrors/mirror/deployment"
    assert wanted == {f"{at}/greedy/a": 3, f"{at}/greedy/b": 2, f"{at}/modest/a": 5}
    (warning,) = world.status()["slack"]["warnings"]
    assert warning == (
        "namespace greedy: capacity is reserved for 5 of the 1007 more pods that its workloads ask for"
        " (slack.mirrors_per_namespace); deployment/greedy/b is the first of which it is not for all"
    )
    world.api.remove(path_of("/apis/apps/v1/deployments", "b", "greedy"))
    world.run(5)
    assert "5 of the 1003 more pods" in world.status()["slack"]["warnings"][0]


@pytest.mark.parametrize(
    ("namespace", "selector", "home"),
    [
        ("shop", (), "shop"),
        ("shop", POOL, "web"),  # its nodes are asked for: narrower than its namespace
        ("other", POOL, "web"),
        ("other", (), "all"),
    ],
)
def test_a_mirror_counts_for_the_narrowest_target(
    namespace: str, selector: tuple[tuple[str, str], ...], home: str, new_world: NewWorld
) -> None:
    targets = (
        TargetSettings("all", 0.1),
        TargetSettings("shop", 0.1, namespace="shop"),
        TargetSettings("web", 0.1, node_selector=POOL),
    )
    world = new_world(group("a", labels=dict(POOL)), slack=SlackSettings(targets=targets))
    mirror(world, "y", 2, PodSpec((("cpu", 100),), node_selector=selector), namespace)
    world.run(3)
    assert {each["target"]: each["wanted"] for each in world.page("/slack")["shapes"]} == {home: 2}


@pytest.mark.parametrize("targets", [(), (TargetSettings("shop", 0.1, namespace="shop"),)], ids=["none", "of others"])
def test_mirrors_that_no_target_takes_have_one_of_their_own(targets: Any, new_world: NewWorld) -> None:
    world = new_world(slack=SlackSettings(targets=targets))
    world.run(3)
    assert not world.page("/slack")["shapes"]
    mirror(world, "y", 1, PodSpec((("cpu", 100),)))
    world.run(3)
    assert [each["target"] for each in world.page("/slack")["shapes"]] == ["mirrors"]


# ---- what is written


def test_what_is_written_is_what_is_shown(new_world: NewWorld) -> None:
    world = new_world(limits=[Limit("nodes", {"nodes": 1})], slack=fixed(4))
    world.cluster.add(2)
    world.run(COMING)
    world.cluster.add(1)
    world.run(COMING)
    status, page = written(world), world.page("/slack")
    counts = {"wanted": 4, "held": 1, "leftOver": 3}
    assert {name: status[name] for name in counts} == counts
    (target,) = status["targets"]
    assert target.items() >= {**counts, "name": "t", "pushedOut": counted(world)[2]}.items()
    assert (status["carrier"], page["carrier"], page["problem"]) == ("virtual", "virtual", "")
    assert unpack(status["placements"]) == {each["name"]: each["nodes"] for each in page["shapes"]}
    (shape,) = page["shapes"]
    assert (shape["name"], shape["target"], shape["requests"]) == ("t/fixed/x", "t", {"cpu": "1"})
    assert page["targets"][0]["cost_usd_per_hour"] == pytest.approx(status["costPerHour"])
    assert world.status()["slack"]["targets"] == {"t": "1 of 4"}


def test_it_is_written_now_and_then_and_the_last_word_counts(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4))
    world.run(COMING)
    before = writes(world)
    for _ in range(4):
        (pod,) = world.cluster.add(4, cpu=900)[:1]
        world.run(3)
        world.cluster.delete(pod)
    assert writes(world) - before <= 4
    world.run(300)
    assert unpack(written(world)["placements"]) == {"t/fixed/x": places(world)}
    before = writes(world)
    world.run(100)
    assert writes(world) == before


def test_a_change_of_carrier_is_written_at_once(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4))
    world.api.put("/apis/scheduling.k8s.io/v1/priorityclasses/cagrpc-slack", {"metadata": {}, "value": -10})
    world.run(COMING)
    configure(world, replace(fixed(4), carrier=Carrier.PODS))
    world.run(2)
    assert written(world)["carrier"] == "pods"


def test_somebody_deletes_it(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4))
    world.run(COMING)
    before = world.api.remove(SLACK)["metadata"]["uid"]
    world.run(COMING)
    assert world.api.objects[SLACK]["metadata"]["uid"] != before
    assert unpack(written(world)["placements"]) == {"t/fixed/x": places(world)}
    world.api.remove(SLACK)
    world.cluster.add(1)
    world.run(10)
    assert unpack(written(world)["placements"]) == {"t/fixed/x": places(world)}


@pytest.mark.parametrize("text", ["?", "e30", "eJyLBQAA+AC6", "eJyrVsrNz0lVslIqLU4tUrJSKkvMKQUANiYF8w=="])
def test_what_cannot_be_read_begins_anew(text: str, new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4))
    world.run(COMING)
    world.api.put(SLACK, {"metadata": {}, "status": {"placements": text}})
    world.restart()
    world.run(10)
    assert counted(world) == (4, 0, 0)
    assert unpack(written(world)["placements"]) == {"t/fixed/x": places(world)}


def test_what_cannot_be_written_is_written_later(new_world: NewWorld, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(request: str) -> None:
        if "slacks" in request:
            raise Refusal(503, "away")

    world = new_world(slack=fixed(4))
    world.run(COMING)
    world.api.before = refuse
    world.cluster.add(1)
    world.run(1)
    for _ in range(10):
        world.run(1)
        assert "away" in world.status()["slack"]["carried"], "also while it is too early for another write"
    world.run(COMING)
    assert "the slack cannot be carried as it should be" in caplog.text
    assert world.targets() == {"a": 2}
    world.api.before = lambda _: None
    world.run(COMING)
    assert unpack(written(world)["placements"]) == {"t/fixed/x": places(world)}


BUFFER, PODS = (replace(fixed(4), carrier=each) for each in (Carrier.BUFFER, Carrier.PODS))


@pytest.mark.parametrize(
    ("slack", "do", "problem"),
    [
        pytest.param(PODS, lambda _: None, "kubectl apply -f deploy/slack.yaml", id="no PriorityClass"),
        pytest.param(BUFFER, lambda world: world.api.kinds.add(path_of(
            "/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers", namespace="cagrpc")), "deploy/buffer-crds.yaml",
            id="no CapacityBuffers"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_said_once_and_tried_less_often(
    slack: SlackSettings,
    do: Callable[[World], object],
    problem: str,
    new_world: NewWorld,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = new_world(slack=slack)
    world.run(1)
    do(world)
    world.cluster.add(1)
    world.run(100)
    assert problem in world.status()["slack"]["carried"]
    assert problem in world.page("/slack")["problem"]
    assert len([each for each in caplog.messages if problem in each]) == 1
    assert world.targets()["a"] >= 1, "what is wanted is known all the same"
    world.api.kinds.clear()
    world.api.put("/apis/scheduling.k8s.io/v1/priorityclasses/cagrpc-slack", {"metadata": {}, "value": -10})
    world.run(40)
    assert problem not in world.status()["slack"]["carried"]


def test_without_its_definition_it_says_what_to_do(new_world: NewWorld) -> None:
    world = new_world(slack=fixed(4))
    world.api.kinds.add(SLACK.rpartition("/")[0])  # it is not served
    world.step()
    with pytest.raises(Unavailable, match=r"kubectl apply -f deploy/slack-crds\.yaml"):
        world.controller("the slack").step()
