"""Which objects carry the slack, and that a change of it loses nothing, wherever it is interrupted."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api import capacity_buffers
from cagrpc.api.capacity_buffers import BufferStatus
from cagrpc.api.core.slack import PRIORITY, SHAPE, is_pause_pod
from cagrpc.api.encoding.messages import packed_known
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.controllers.slack.carriers import buffers, pause
from cagrpc.controllers.slack.carriers.objects import (
    STRATEGY,
    CarrierUpdate,
    Verb,
    buffer_body,
    object_name,
    replica_set_body,
    template_body,
)
from solver.slack.model import SlackShape
from tests.support.controllers.slack_carriers import NOW, OWNER, PLACE, CarrierObjects, shape

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

shapes = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.tuples(st.sampled_from([500, 1000]), st.integers(1, 3)), max_size=3
).map(lambda found: tuple(shape(name, cpu, number) for name, (cpu, number) in found.items()))


@given(st.text(max_size=300), st.text(max_size=300))
def test_names_are_names_and_differ(one: str, other: str) -> None:
    assert DNS_LABEL.fullmatch(object_name(one))
    assert len(object_name(one)) <= 63 - len("-12345678")
    assert (object_name(one) == object_name(other)) == (one == other)


def test_a_buffer_is_of_a_strategy_of_its_own() -> None:
    wanted = shape("web", 500, 3, labels=(("app", "web"),))
    template = template_body(wanted, PLACE)
    body = buffer_body(wanted, template["metadata"]["name"], PLACE)
    assert body["spec"] == {
        "provisioningStrategy": STRATEGY,
        "podTemplateRef": {"name": template["metadata"]["name"]},
        "replicas": 3,
    }
    for each in (body, template):
        assert each["metadata"]["ownerReferences"] == [OWNER]
        assert each["metadata"]["namespace"] == "holders"
        assert each["metadata"]["annotations"] == {SHAPE: wanted.name}
    assert template["template"]["spec"]["priority"] == -10
    assert template["template"]["metadata"]["labels"]["app"] == "web"


def test_pause_pods_say_what_they_are() -> None:
    body = replica_set_body(shape("web", 500, 3, labels=(("app", "web"),)), PLACE)
    template = body["spec"]["template"]
    assert body["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = packed_known(kubernetes_pb2.Pod, template)
    pod.metadata.namespace, pod.spec.priority = PLACE.namespace, PRIORITY  # as admission has it
    pod.metadata.ownerReferences.add(kind="ReplicaSet", name=body["metadata"]["name"], controller=True)
    assert is_pause_pod(pod, PLACE.namespace)
    assert template["metadata"]["annotations"][SHAPE] == "t/fixed/web"
    assert template["spec"]["priorityClassName"] == "cagrpc-slack"
    assert template["spec"]["terminationGracePeriodSeconds"] == 1


def _buffers(wanted: tuple[SlackShape, ...], objects: CarrierObjects) -> CarrierUpdate:
    there = objects.there
    return buffers.next_writes(wanted, there(PLACE.templates()), there(PLACE.buffers()), PLACE, NOW)


def _settle_buffers(wanted: tuple[SlackShape, ...], objects: CarrierObjects) -> None:
    for _ in range(6):
        todo = _buffers(wanted, objects)
        objects.write(todo.writes)
        if todo.done:
            return
    raise AssertionError("there is always something to write")


def _is_injected(wanted: tuple[SlackShape, ...], objects: CarrierObjects) -> None:
    specs = {each.name: template_body(each, PLACE)["template"]["spec"] for each in wanted}
    assert objects.injected() == {each.name: (each.count, specs[each.name]) for each in wanted}


@given(shapes, shapes, st.integers(0, 8))
def test_buffers_hold_what_is_wanted_and_lose_nothing_on_the_way(
    before: tuple[SlackShape, ...], after: tuple[SlackShape, ...], until: int
) -> None:
    objects = CarrierObjects()
    _settle_buffers(before, objects)
    _is_injected(before, objects)
    both = {each.name: each.count for each in before}
    least = {each.name: min(each.count, both[each.name]) for each in after if each.name in both}
    todo, written = _buffers(after, objects), 0
    while todo.writes and written < until:
        objects.write(todo.writes[:1])
        written += 1
        injected = objects.injected()
        assert all(name in injected and injected[name][0] >= number for name, number in least.items())
        todo = _buffers(after, objects)
    _settle_buffers(after, objects)
    _is_injected(after, objects)
    assert len(objects.there(PLACE.templates())) == len(objects.there(PLACE.buffers())) == len(after)


def test_a_buffer_keeps_the_conditions_of_others() -> None:
    objects = CarrierObjects()
    wanted = (shape("web", 500, 2),)
    _settle_buffers(wanted, objects)
    (buffer,) = objects.there(PLACE.buffers()).values()
    theirs = {"type": "Provisioning", "status": "True", "reason": "FakePodsInjected", "message": ""}
    status = {**buffer["status"], "conditions": [*buffer["status"]["conditions"], theirs]}
    patch = capacity_buffers.status_patch({**buffer, "status": status}, BufferStatus("other", 4, 7), NOW + 60)
    assert patch["metadata"] == {"resourceVersion": buffer["metadata"]["resourceVersion"]}
    found = {each["type"]: each for each in patch["status"]["conditions"]}
    assert found["Provisioning"] == theirs
    assert found["ReadyForProvisioning"]["lastTransitionTime"] == "2027-01-15T08:00:00Z", "it was so before"
    assert capacity_buffers.injected({"status": patch["status"]})


def _pods(wanted: tuple[SlackShape, ...], objects: CarrierObjects) -> CarrierUpdate:
    return pause.next_writes(wanted, objects.there(PLACE.replica_sets()), PLACE)


@given(shapes, shapes, st.integers(0, 8))
def test_pause_pods_are_those_that_are_wanted_and_never_twice(
    before: tuple[SlackShape, ...], after: tuple[SlackShape, ...], until: int
) -> None:
    objects = CarrierObjects()
    for wanted, steps in ((before, 100), (after, until), (after, 100)):
        for _ in range(steps):
            todo = _pods(wanted, objects)
            if todo.done:
                break
            objects.write(todo.writes[:1])
            objects.controllers()
            assert all(len(sets) == 1 for sets in objects.pods().values()), "room for both would be opened"
    specs = {each.name: replica_set_body(each, PLACE)["spec"]["template"]["spec"] for each in after}
    assert objects.pods() == {each.name: [(each.count, specs[each.name])] for each in after}
    assert len(objects.there(PLACE.replica_sets())) == len(after)


def test_pods_of_another_size_wait_until_those_before_are_gone() -> None:
    objects = CarrierObjects()
    objects.write(_pods((shape("web", 500),), objects).writes)
    objects.controllers()
    larger = (shape("web", 1000),)
    emptied = _pods(larger, objects)
    assert [write.body for write in emptied.writes] == [{"spec": {"replicas": 0}}]
    objects.write(emptied.writes)
    assert _pods(larger, objects) == CarrierUpdate(waits=True), "its controller has not seen it yet"
    objects.controllers()
    assert [write.verb for write in _pods(larger, objects).writes] == [Verb.DELETE, Verb.CREATE]
