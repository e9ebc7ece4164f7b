"""What requests, their classes and PodTemplates say, and what is told of what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.provisioning.objects import CLASSES
from cagrpc.controllers.settings import ClassBehaviour, RequestSettings
from tests.controllers.provisioning.conftest import Make
from tests.support.fleet import group
from tests.support.requests import ATOMIC, CHECK, UPSTREAM_ATOMIC, UPSTREAM_CHECK, RequestWorld, path
from tests.support.world import BOOT_SECONDS

LONG = 3 * BOOT_SECONDS


def define(world: RequestWorld, name: str, behaviour: str, **parameters: str) -> None:
    """Create a ProvisioningClass."""
    world.api.put(f"{CLASSES}/{name}", {"metadata": {}, "spec": {"behaviour": behaviour, "parameters": parameters}})


def names(world: RequestWorld) -> list[str]:
    return [each["name"] for each in world.page("/provisioningrequests")]


# ---- which are ours


@pytest.mark.parametrize(
    ("left_to_us", "ours"),
    [
        ((), []),
        ((ClassBehaviour.CHECK,), [UPSTREAM_CHECK]),
        ((ClassBehaviour.ATOMIC,), [UPSTREAM_ATOMIC]),
        (tuple(ClassBehaviour), [UPSTREAM_CHECK, UPSTREAM_ATOMIC]),
    ],
)
def test_upstreams_are_ours_where_they_are_left_to_us(
    make: Make, left_to_us: tuple[ClassBehaviour, ...], ours: list[str]
) -> None:
    world = make(requests=RequestSettings(upstream_classes=frozenset(left_to_us)))
    for name in (UPSTREAM_CHECK, UPSTREAM_ATOMIC, ATOMIC, CHECK):
        world.request(name, ("web", 1), of=name)
    world.request("anothers", ("web", 1), of=UPSTREAM_CHECK, processorInstance="other")
    world.run(5)
    assert sorted(names(world)) == sorted([*ours, ATOMIC, CHECK])


def test_a_class_of_the_cluster_is_what_it_says_and_any_other_is_nobodys(make: Make) -> None:
    world = make()
    define(world, "gold", "atomic-scale-up", ValidUntilSeconds="12h")
    define(world, "look", "check-capacity")
    define(world, "wrong", "fly")
    for name in ("gold", "look", "wrong", "silver"):
        world.request(name, ("web", 4), of=name)
    world.run(LONG)
    assert world.is_true("gold", "Provisioned")
    assert world.is_true("look", "Failed")
    assert sorted(names(world)) == ["gold", "look"]
    assert world.bookings == 1
    world.api.remove(f"{CLASSES}/gold")
    world.request("late", ("web", 4), of="gold")
    world.run(LONG)
    assert "status" not in world.document("late")


# ---- on what terms


@pytest.mark.parametrize(
    ("parameters", "fails_after"),
    [
        ({}, 0),
        ({"noRetry": "False"}, 60),
        ({"noRetry": "false", "ValidUntilSeconds": "2m30s"}, 150),
        ({"noRetry": "false", "ValidUntilSeconds": "200"}, 200),
    ],
)
def test_a_requests_own_parameters_win_over_its_classs(
    make: Make, parameters: dict[str, str], fails_after: float
) -> None:
    world = make(group("a", max_size=1))
    define(world, "gold", "atomic-scale-up", ValidUntilSeconds="60", noRetry="true")
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("r", ("web", 4), of="gold", **parameters)
    world.run(max(0, fails_after - 5))
    assert world.is_true("r", "Failed") == (not fails_after)
    world.run(10)
    assert world.is_true("r", "Failed")


SPEC: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown parameter": (
        {"parameters": {"Colour": "blue"}}, '"Colour", expected one of ValidUntilSeconds, noRetry',
    ),
    "a time in words": ({"parameters": {"ValidUntilSeconds": "soon"}}, 'found "soon"'),
    "no time": ({"parameters": {"ValidUntilSeconds": "0"}}, 'found "0"'),
    "a time before": ({"parameters": {"ValidUntilSeconds": "-5s"}}, 'found "-5s"'),
    "neither true nor false": ({"parameters": {"noRetry": "maybe"}}, 'found "maybe", expected true or false'),
    # what the definition that comes with CA lets pass
    "too many pods": (
        {"podSets": [{"podTemplateRef": {"name": "web"}, "count": 20_000}]}, "spec.podSets[0].count: 20000 is not",
    ),
    "no pods": ({"podSets": []}, "spec.podSets: has 0 pod sets"),
    "a number": ({"parameters": {"a": 1}}, "spec.parameters.a: expected text"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPEC)
def test_what_is_wrong_with_a_request_is_told_and_holds_up_no_other(make: Make, name: str) -> None:
    spec, why = SPEC[name]
    world = make()
    world.request("bad", ("web", 1))
    world.request("good", ("web", 1))
    world.api.change(path("bad"), spec=spec)
    world.run(LONG)
    assert why in world.message("bad", "Failed")
    assert world.is_true("good", "Provisioned")


def test_a_status_that_nobody_can_read_is_no_mistake_of_who_asks(make: Make) -> None:
    world = make()
    world.request("r", ("web", 1))
    document = world.document("r")
    world.api.put(path("r"), {**document, "status": {"conditions": 3, "provisioningClassDetails": {"nodes": 2}}})
    world.run(LONG)
    assert world.is_true("r", "Provisioned")


def test_requests_come_and_go_and_are_oldest_first(make: Make) -> None:
    world = make()
    for name, age in (("b", 5), ("a", 5), ("oldest", 9)):
        world.request(name, ("web", 1))
        world.api.edit(path(name), creationTimestamp=f"1970-01-12T13:46:3{9 - age}Z")
    world.api.edit(path("b"), deletionTimestamp="1970-01-12T13:46:40Z")
    world.run(LONG)
    assert names(world)[:2] == ["oldest", "a"]
    assert not world.is_true("b", "Provisioned"), "it is deleted, and waits for its finalizers"
    world.delete("b")
    world.run(5)
    assert names(world) == ["oldest", "a"]
    world.restart()
    world.run(5)
    assert names(world) == ["oldest", "a"]


# ---- PodTemplates


def test_a_template_may_come_later_and_one_that_is_wrong_or_missing_is_told_then(make: Make) -> None:
    world = make()
    world.template("wrong", tolerations=[{"operator": "In"}])
    world.template("high", priorityClassName="high", priority=7)
    told = {
        "missing": "there is no PodTemplate ns/missing",
        "wrong": (
            'PodTemplate ns/wrong is invalid: template.spec.tolerations[0].operator: "In" is not one of Equal, Exists'
        ),
        "high": "PodTemplate ns/high: there is no PriorityClass high",
    }
    for name in ("late", *told):
        world.request(name, (name, 1))
    world.run(5)
    assert not world.writes()
    world.template("late")
    world.run(700)
    assert world.is_true("late", "Provisioned")
    for name, text in told.items():
        assert text in world.message(name, "Failed")


def test_a_template_is_a_pod_with_all_of_its_labels(make: Make) -> None:
    world = make()
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "1", "b": "2"}}}]
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    world.template("apart", labels={"b": "2", "a": "1"}, affinity=apart)
    world.template("near", labels={"b": "2"}, affinity=apart)
    world.request("apart", ("apart", 3))
    world.run(LONG)
    assert world.targets() == {"a": 3}
    world.delete("apart")
    world.run(5)
    world.request("near", ("near", 4))
    world.run(5)
    assert world.details("near")["nodes"] == "1"


@pytest.mark.parametrize(
    ("template", "first"),
    [
        ({}, "usual"),  # of two defaults the lower one
        ({"priority": 2_000_000_000}, "usual"),  # whatever number it says
        ({"priorityClassName": "high", "priority": 1}, "r"),
        ({"priorityClassName": "low"}, "usual"),
    ],
)
def test_the_priority_is_that_of_the_class_or_of_the_default(make: Make, template: Any, first: str) -> None:
    world = make(group("a", max_size=1))
    for name, value, default in (("high", 100, False), ("low", 1, False), ("d5", 5, True), ("d3", 3, True)):
        world.priority_class(name, value, default=default)
    world.template("usual", priorityClassName="d3")
    world.template("r", **template)
    world.request("usual", ("usual", 4))
    world.clock.advance(1.0)
    world.request("r", ("r", 4))
    world.run(LONG)
    assert [name for name in ("usual", "r") if world.is_true(name, "Provisioned")] == [first]
