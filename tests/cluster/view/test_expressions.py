"""Selectors of devices in the view: whatever one namespace writes, others' are read and evaluated, and its own take no
more than its share. Hostile figures are in bench/hostile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from cagrpc.api.devices import expressions
from cagrpc.api.devices.cel import MOST_STEPS as MOST_STEPS_OF_ONE
from cagrpc.api.devices.cel import Expression, reading_steps
from cagrpc.api.devices.objects import MOST_ALTERNATIVES, MOST_SELECTOR_BYTES
from cagrpc.api.gen import kubernetes_pb2
from solver.model import PodSpec
from tests.support.controllers.cluster_objects import Fed, node, of_devices, pod
from tests.support.devices import CLAIMS, CLASSES, DRIVER, SLICES, TEMPLATES, claim_spec, claim_template, device_class
from tests.support.devices import gpus as slice_of

LONG = f"size([{','.join(['1'] * 5_100)}]) > 0"
"""As long as Kubernetes allows, and of as many tokens as there can be."""


def fed(*slices: Any, classes: tuple[Any, ...] = ()) -> Fed:
    found = Fed(expects=True)
    found.nodes(*(node(each["spec"]["nodeName"]) for each in slices or (slice_of(),)))
    found.relist(list(classes) or [device_class()], CLASSES)
    found.relist([], CLAIMS)
    found.relist([], TEMPLATES)
    found.relist(list(slices) or [slice_of()], SLICES)
    return found


def asking(there: Fed, name: str, *texts: str, namespace: str = "evil") -> kubernetes_pb2.Pod:
    """Have a pod that asks for a device for which all of these hold; return it."""
    body = claim_spec(selectors=[{"cel": {"expression": each}} for each in texts])
    there.put(claim_template(name, spec=body, namespace=namespace), path=TEMPLATES)
    found = pod(name, namespace=namespace, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": name}])
    there.put(found)
    return found


def honest(there: Fed) -> kubernetes_pb2.Pod:
    return asking(there, "honest", f'device.driver == "{DRIVER}" && 1 > 0', namespace="good")


def specs(there: Fed) -> dict[str, PodSpec]:
    return {f"{ref.namespace}/{ref.name}": each.pod_set.spec for each in there.state().waiting for ref in each.pods}


def devices(there: Fed, key: str) -> int:
    """Return how many devices nodes have to give to a selector."""
    nodes = (each.node for each in there.state().nodes)
    return sum(each.count for of in nodes for each in of.devices if key in each.selectors and not each.uncertain)


def key_of(spec: PodSpec) -> str:
    assert not spec.unschedulable
    return spec.claims[0].requests[0].alternatives[0].selector


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were read."""
    found: list[str] = []
    original = expressions.read_expression

    def counted(text: str) -> Any:
        found.append(text)
        return original(text)

    monkeypatch.setattr(expressions, "read_expression", counted)
    return found


def figures(there: Fed) -> tuple[int, int]:
    """Return the bytes in use, and how many pods have no room."""
    return there.model._devices._expressions._bytes, there.model.shares()[1]


def reading(texts: Iterable[str]) -> int:
    return sum(map(reading_steps, texts))


def test_an_honest_selector_is_read_in_the_first_round_beside_hostile_ones_that_take_their_share_of_it(
    read: list[str],
) -> None:
    there = fed()
    for number in range(30):
        asking(there, f"evil-{number}", f"{number} >= 0 && {LONG}")
    honest(there)
    found = specs(there)
    assert devices(there, key_of(found["good/honest"])) == 4
    left = [spec.unschedulable for name, spec in found.items() if name != "good/honest" and spec.unschedulable]
    assert len(left) > 20
    assert sum("is not read yet" in each for each in left) >= 5
    # The rest have no room: neither read nor queued.
    assert sum("the selectors of namespace evil take more than 128 KiB together" in each for each in left) > 15
    rounds = 0
    while "is not read yet" in " ".join(spec.unschedulable for spec in specs(there).values()):
        rounds += 1
        before = len(read)
        there.state()
        assert reading(read[before:]) <= expressions.MOST_STEPS // expressions.OWNERS_AT_ONCE
        assert rounds < 50
    assert reading(read) <= 15 * reading_steps(f"10 >= 0 && {LONG}")
    assert len(read) == len(set(read))


def test_nothing_is_read_under_the_lock_of_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    there = fed()
    original, locked = expressions.read_expression, list[bool]()

    def noted(text: str) -> Any:
        locked.append(there.model._lock.locked())
        return original(text)

    monkeypatch.setattr(expressions, "read_expression", noted)
    asking(there, "evil", LONG)
    honest(there)
    assert len(specs(there)) == 2
    assert locked == [False] * 3


def test_what_is_kept_goes_with_the_last_pod_that_uses_it(read: list[str]) -> None:
    there = fed()
    pods = [asking(there, f"p{number}", "1 > 0", "2 > 1") for number in range(2)]
    assert not any(spec.unschedulable for spec in specs(there).values())
    assert sorted(read) == ["1 > 0", "2 > 1", f'device.driver == "{DRIVER}"']
    there.drop(pods[0])
    there.state()
    assert len(read) == 3
    there.drop(pods[1])
    there.state()
    assert figures(there) == (0, 0)
    assert not any(of_devices(there.model))
    assert not there.model._devices._expressions._kept
    asking(there, "again", "1 > 0")
    there.state()
    assert len(read) == 5


def test_pods_without_room_are_read_once_there_is_some(read: list[str]) -> None:
    there = fed()
    first = [asking(there, f"p{number}", f"{number} >= 0 && {LONG}") for number in range(11)]
    last = asking(there, "last", f"100 >= 0 && {LONG}")
    assert "take more than 128 KiB" in specs(there)["evil/last"].unschedulable
    assert figures(there)[1] == 1
    there.drop(first[0])
    assert "is not read yet" in specs(there)["evil/last"].unschedulable
    for _ in range(20):
        there.state()
    assert not specs(there)["evil/last"].unschedulable
    there.drop(last, *first)
    there.state()
    assert figures(there) == (0, 0)


def test_where_all_is_full_the_namespace_with_the_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_BYTES", 10_000)
    there = fed()
    for number in range(20):
        asking(there, f"p{number}", f"{number} >= 0")
    assert "more than their share" in specs(there)["evil/p19"].unschedulable
    honest(there)
    found = specs(there)
    assert not found["good/honest"].unschedulable
    assert figures(there)[0] <= 10_000
    assert not found["evil/p0"].unschedulable
    assert "more than their share" in found["evil/p12"].unschedulable


def test_a_share_is_one_namespaces_whichever_pods_ask_alike(read: list[str]) -> None:
    there = fed()
    for number in range(3):
        asking(there, f"p{number}", "1 > 0", namespace=f"ns{number}")
    assert not any(spec.unschedulable for spec in specs(there).values())
    of_selector = 512
    assert figures(there)[0] == of_selector + sum(len(text) + 256 for text in read)
    assert len(read) == 2


def many_devices(count: int, driver: str = DRIVER, on: str = "n1") -> Any:
    found = slice_of(on=on, each=[{"name": f"gpu-{n}", "attributes": {"n": {"int": n}}} for n in range(count)])
    found["spec"]["driver"] = driver
    found["metadata"]["name"] = f"{on}-{driver}"
    return found


def costly(driver: str = DRIVER) -> str:
    numbers = f"[{', '.join(map(str, range(100)))}]"
    return f'{numbers}.all(n, n >= -device.attributes["{driver}"].n)'


def test_an_honest_selector_is_evaluated_in_the_first_round_beside_costly_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_STEPS", 100_000)
    there = fed(many_devices(120))
    for number in range(5):
        asking(there, f"evil-{number}", f"{number} >= 0 && {costly()}")
    text = f'device.attributes["{DRIVER}"].n >= 0'
    asking(there, "honest", text, namespace="good")
    steps = _counted(monkeypatch)
    found = specs(there)
    assert devices_now(there, found) == {"good/honest": 120}
    of_one = expressions.MOST_STEPS // expressions.OWNERS_AT_ONCE
    hostile = sum(taken for expression, taken in steps if expression.startswith("evil"))
    assert hostile <= of_one + MOST_STEPS_OF_ONE


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What owners take for evaluations."""
    found: list[tuple[str, int]] = []
    take = expressions.StepShares.take

    def noted(self: expressions.StepShares, owner: str, steps: int, driver: str = "") -> None:
        if driver:
            found.append((owner.removeprefix("namespace "), steps))
        take(self, owner, steps, driver)

    monkeypatch.setattr(expressions.StepShares, "take", noted)
    return found


def devices_now(there: Fed, found: dict[str, PodSpec]) -> dict[str, int]:
    """Return how many devices each pod may have, of those with any: in the state that was made last."""
    matching = there.model._devices._matching[1]
    given = matching._memory.of_nodes.values() or [(None, matching.of_node("n1", {}, {}))]
    of = {name: key_of(spec) for name, spec in found.items() if spec.claims}
    counts = {
        name: sum(each.count for _, all_ in given for each in all_ if key in each.selectors and not each.uncertain)
        for name, key in of.items()
    }
    return {name: count for name, count in counts.items() if count}


def test_costly_selectors_are_evaluated_in_the_end_and_say_so_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_STEPS", 40_000)
    there = fed(many_devices(30))
    asking(there, "evil", costly())
    state = there.state()
    for _ in range(60):
        (waiting,) = state.waiting
        if not state.devices.left_out(waiting.pod_set.spec).unschedulable:
            break
        assert "not read yet" in waiting.pod_set.spec.unschedulable or "next time" in (
            state.devices.left_out(waiting.pod_set.spec).unschedulable
        )
        state = there.state()
    (waiting,) = state.waiting
    assert devices(there, key_of(waiting.pod_set.spec)) == 30


def test_a_driver_whose_devices_are_costly_leaves_steps_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_STEPS", 300_000)
    any_device = {**device_class(), "spec": {"selectors": [{"cel": {"expression": "1 > 0"}}]}}
    there = fed(many_devices(200, "evil.example.com"), many_devices(2, on="n2"), classes=(any_device,))
    # Hostile devices are many and none alike; what the selector reads of them costs the same as of others.
    text = f"device.attributes.all(d, {costly('d').replace(chr(34) + 'd' + chr(34), 'd')})"
    asking(there, "p", text, namespace="good")
    found = specs(there)
    matching = there.model._devices._matching[1]
    key = key_of(found["good/p"])
    assert [each.count for each in matching.of_node("n2", {}, {}) if key in each.selectors] == [2]
    assert not any(key in each.selectors and not each.uncertain for each in matching.of_node("n1", {}, {}))


def test_answers_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_REMEMBERED_OF_OWNER", 100)
    there = fed(many_devices(128))
    asking(there, "p", f'device.attributes["{DRIVER}"].n >= 0')
    found = specs(there)
    assert devices(there, key_of(found["evil/p"])) == 128
    kept = there.model._devices._expressions._kept.values()
    assert all(each.found.remembered <= 200 for each in kept if isinstance(each.found, Expression))


def test_a_claim_with_too_much_is_not_kept_and_says_so() -> None:
    there = fed()
    most = MOST_SELECTOR_BYTES // len(LONG)
    asking(there, "much", *[f"{number} >= 0 && {LONG}" for number in range(most + 1)])
    assert "asks by more than 64 KiB of CEL expressions" in specs(there)["evil/much"].unschedulable
    assert figures(there)[0] == 0
    (claimed,) = (table.of["evil/much"] for table in there.model._devices._templates if table.of)
    assert claimed.requests == ()


def test_a_pod_whose_claims_ask_for_too_much_says_so() -> None:
    there = fed()
    asked = claim_spec(selectors=[{"cel": {"expression": "1 > 0"}}])["devices"]["requests"][0]["exactly"]
    wide = {"devices": {"requests": [{"name": f"r{n}", "exactly": asked} for n in range(32)]}}
    there.put(claim_template("wide", spec=wide), path=TEMPLATES)
    claims = [{"name": f"c{n}", "resourceClaimTemplateName": "wide"} for n in range(MOST_ALTERNATIVES // 32 + 1)]
    there.put(pod("wide", resourceClaims=claims), pod("less", resourceClaims=claims[:-1]))
    found = specs(there)
    assert "more than planning knows: 256 alternatives" in found["default/wide"].unschedulable
    assert not found["default/less"].unschedulable


def test_long_expressions_are_told_apart_by_short_keys() -> None:
    there = fed()
    texts = [f"{number} >= 0 && size([{','.join(['1'] * 600)}]) > 0" for number in range(2)]
    for number, text in enumerate(texts):
        asking(there, f"p{number}", text)
    keys = {key_of(spec) for spec in specs(there).values()}
    assert len(keys) == 2
    assert all(len(key) < 300 for key in keys)


def test_what_was_read_for_a_state_is_no_news_and_what_was_not_is() -> None:
    there = fed()
    honest(there)
    there.time = 10.0
    before = there.model.arrivals()
    there.state()
    assert there.model.arrivals() == before
    for number in range(6):
        asking(there, f"evil-{number}", f"{number} >= 0 && {LONG}")
    there.time = 20.0
    there.state()
    assert there.model.arrivals().news_at_seconds["evil"] == 20.0


def test_what_is_not_read_yet_of_classes_is_news_of_no_namespace() -> None:
    selectors = [{"cel": {"expression": f"{number} >= 0 && {LONG}"}} for number in range(6)]
    there = fed(classes=(device_class(selectors=selectors),))
    honest(there)
    there.time = 20.0
    there.state()
    news = there.model.arrivals().news_at_seconds
    assert news[""] == 20.0
    assert set(news) <= {"", "good"}
