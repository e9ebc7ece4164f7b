"""Which objects carry the slack, and that a change of it loses nothing, wherever it is interrupted."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api import capacity_buffers
from cagrpc.api.capacity_buffers import BufferStatus
from cagrpc.api.core.slack import SHAPE
from cagrpc.controllers.settings import Drive
from cagrpc.controllers.slack.model import Carrier, SlackSettings, TargetSettings
from solver.model import PodSpec
from solver.slack.model import Copies
from tests.controllers.slack.test_holding import mirror
from tests.support.api_server import Document, Refusal
from tests.support.cluster import path_of
from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.world import World

BUFFER_API = "/apis/autoscaling.x-k8s.io/v1beta1"
BUFFERS, TEMPLATES, SETS = f"{BUFFER_API}/capacitybuffers", "/api/v1/podtemplates", "/apis/apps/v1/replicasets"
PRIORITY_CLASS = "/apis/scheduling.k8s.io/v1/priorityclasses/cagrpc-slack"
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
Shapes = Mapping[str, tuple[int, int]]
"""By name, so much cpu and so many."""
SHAPES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.tuples(st.sampled_from([500, 700]), st.integers(1, 3)), max_size=3
)
SETTLED = 100.0


def wanted(carrier: Carrier | None, shapes: Shapes, **more: Any) -> SlackSettings:
    fixed = (Copies(name, PodSpec((("cpu", cpu),), **more), count) for name, (cpu, count) in shapes.items())
    return SlackSettings(carrier, (TargetSettings("t", fixed=tuple(fixed)),) if shapes else ())


class Carried(World):
    """The autoscaler drives: nodes do not come here. The controller of ReplicaSets acts where a test says so."""

    def __init__(self, carrier: Carrier | None = None, shapes: Shapes | None = None, **more: Any) -> None:
        more.setdefault("slack", wanted(carrier, {"x": (500, 3)} if shapes is None else shapes))
        super().__init__(group("a", cpu=4000), **{"drive": Drive.ASSIST, **more})
        self.api.put(PRIORITY_CLASS, {"metadata": {}, "value": -10})
        self.lags = False
        """Whether the controller of ReplicaSets does nothing now."""

    def want(self, carrier: Carrier | None, shapes: Shapes) -> None:
        """Let another process begin, that is configured so."""
        self.settings = replace(self.settings, slack=wanted(carrier, shapes))
        self.restart()

    def _step(self) -> None:
        super()._step()
        for path, each in self.of(SETS).items() if not self.lags else ():
            status = {"replicas": each["spec"]["replicas"], "observedGeneration": each["metadata"]["generation"]}
            if each.get("status") != status:
                self.api.change(path, status=status)

    def of(self, collection: str) -> dict[str, Document]:
        """Return our objects of a collection in the namespace of the slack, by path."""
        there = path_of(collection, namespace="cagrpc")
        return {path: each for path, each in self.api.objects.items() if path.rpartition("/")[0] == there}

    def injected(self) -> dict[str, tuple[int, int]]:
        """Return what CA injects by its rules, by shape: of which cpu, and how many."""
        templates = {each["metadata"]["name"]: each for each in self.of(TEMPLATES).values()}
        found = {}
        for buffer in self.of(BUFFERS).values():
            said = capacity_buffers.status(buffer)
            of = templates.get(said.template)
            if of and said == BufferStatus(said.template, of["metadata"]["generation"], said.replicas):
                found[_shape(buffer)] = (_cpu(of["template"]), said.replicas)
        return found

    def pods(self) -> dict[str, list[tuple[int, int]]]:
        """Return what ReplicaSets want, by shape."""
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for each in self.of(SETS).values():
            if each["spec"]["replicas"]:
                found[_shape(each)].append((_cpu(each["spec"]["template"]), each["spec"]["replicas"]))
        return dict(found)

    def objects(self) -> tuple[int, int, int]:
        """Return how many CapacityBuffers, PodTemplates and ReplicaSets of ours there are."""
        return len(self.of(BUFFERS)), len(self.of(TEMPLATES)), len(self.of(SETS))


def _shape(found: Document) -> str:
    return str(found["metadata"]["annotations"][SHAPE]).removeprefix("t/fixed/")


def _cpu(template: Document) -> int:
    return int(template["spec"]["containers"][0]["resources"]["requests"]["cpu"].removesuffix("m"))


# ---- a change, and a process that is killed at one of its writes


@examples(40)
@given(SHAPES, SHAPES, st.integers(0, 12))
def test_buffers_hold_what_is_wanted_and_lose_nothing_on_the_way(before: Shapes, after: Shapes, fatal: int) -> None:
    with Carried(Carrier.BUFFER, before) as world:
        world.run(3)
        assert world.injected() == before
        kept = {name: min(before[name][1], count) for name, (_, count) in after.items() if name in before}

        def nothing_is_lost(_: object) -> None:
            injected = world.injected()
            assert all(name in injected and injected[name][1] >= least for name, least in kept.items())

        world.want(Carrier.BUFFER, after)
        world.api.before, world.calls.fatal = nothing_is_lost, fatal
        world.run(24, 3.0)
        assert world.injected() == after
        assert world.objects() == (len(after), len(after), 0)


@examples(40)
@given(SHAPES, SHAPES, st.integers(0, 8))
def test_pause_pods_are_those_that_are_wanted_and_never_twice(before: Shapes, after: Shapes, fatal: int) -> None:
    with Carried(Carrier.PODS, before) as world:

        def never_twice(_: object) -> None:
            assert all(len(sets) == 1 for sets in world.pods().values()), "room for both would be opened"

        world.run(3)
        world.want(Carrier.PODS, after)
        world.api.before, world.calls.fatal = never_twice, fatal
        world.run(24, 3.0)
        assert world.pods() == {name: [each] for name, each in after.items()}
        assert world.objects() == (0, 0, len(after))


@pytest.mark.parametrize("created", [True, False])
def test_pods_of_another_size_wait_until_those_before_are_gone(*, created: bool) -> None:
    with Carried(Carrier.PODS, {"x": (500, 1)}) as world:
        world.lags = not created
        world.run(3)
        world.want(Carrier.PODS, {"x": (700, 1)})
        world.lags = True
        world.run(30)
        assert (world.pods(), len(world.of(SETS))) == ({}, 1), "its controller has not seen it yet"
        assert world.status()["slack"]["carried"] == "on its way"
        world.lags = False
        world.run(SETTLED)
        assert (world.pods(), len(world.of(SETS))) == ({"x": [(700, 1)]}, 1)


def test_what_somebody_changes_or_deletes_is_put_right() -> None:
    with Carried(Carrier.PODS) as world:
        world.run(3)
        (path,) = world.of(SETS)
        world.api.change(path, spec={"replicas": 7})
        world.run(20)
        assert world.pods() == {"x": [(500, 3)]}
        world.api.remove(path)
        world.run(20)
        assert world.pods() == {"x": [(500, 3)]}
    with Carried(Carrier.BUFFER) as world:
        world.run(3)
        world.api.remove(next(iter(world.of(TEMPLATES))))
        world.run(20)
        assert world.injected() == {"x": (500, 3)}


# ---- what is written


def test_a_buffer_is_of_a_strategy_of_its_own() -> None:
    with Carried(slack=wanted(Carrier.BUFFER, {"x": (500, 3)}, labels=(("app", "web"),))) as world:
        world.run(3)
        (buffer,) = world.of(BUFFERS).values()
        (template,) = world.of(TEMPLATES).values()
        assert buffer["spec"] == {
            "provisioningStrategy": "slack.cagrpc.io/placeholders",
            "podTemplateRef": {"name": template["metadata"]["name"]},
            "replicas": 3,
        }
        slack = world.api.objects["/apis/cagrpc.io/v1alpha1/namespaces/cagrpc/slacks/cagrpc"]
        for each in (buffer, template):
            (owner,) = each["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"]) == ("Slack", slack["metadata"]["uid"])
            assert each["metadata"]["annotations"] == {SHAPE: "t/fixed/x"}
        assert template["template"]["spec"]["priority"] == -10
        assert template["template"]["metadata"]["labels"]["app"] == "web"


def test_pause_pods_say_what_they_are_and_where_they_are_is_where_the_slack_is() -> None:
    with Carried(slack=wanted(Carrier.PODS, {"x": (500, 3)}, labels=(("app", "web"),))) as world:
        world.run(3)
        (path,), (found,) = zip(*world.of(SETS).items(), strict=True)
        template = found["spec"]["template"]
        assert found["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["labels"]["app"] == "web"
        assert template["spec"]["terminationGracePeriodSeconds"] == 1
        world.cluster.node("large", group("a", cpu=1500))
        world.cluster.node("small", group("a", cpu=500))
        controller = {"kind": "ReplicaSet", "name": path.rpartition("/")[2], "controller": True}
        spec = {**template["spec"], "nodeName": "small", "priority": -10}  # as admission has it
        metadata = {**template["metadata"], "namespace": "cagrpc", "ownerReferences": [controller]}
        document = {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
        world.api.put(path_of("/api/v1/pods", "p", "cagrpc"), document)
        world.run(3)
        (shape,) = world.page("/slack")["shapes"]
        assert shape["nodes"] == {"small": 1, "large": 2}, "the room of its own pods is the slack's"


def test_names_are_names_and_differ() -> None:
    with Carried(slack=SlackSettings(Carrier.PODS)) as world:
        names = ["web", "web.two", "web-two", "x" * 250, "x" * 249 + "y"]
        for name in names:
            mirror(world, name, 1, PodSpec((("cpu", 10),)))
        world.run(3)
        found = [path.rpartition("/")[2] for path in world.of(SETS)]
        assert len(found) == len(names)
        assert all(DNS_LABEL.fullmatch(each) and len(each) <= 63 for each in found)


def test_a_buffer_keeps_the_conditions_of_others() -> None:
    with Carried(Carrier.BUFFER, {"x": (500, 2)}) as world:
        world.run(3)
        (path,) = world.of(BUFFERS)
        since = world.api.objects[path]["status"]["conditions"][0]["lastTransitionTime"]
        theirs = {"type": "Provisioning", "status": "True", "reason": "FakePodsInjected", "message": ""}
        world.api.change(path, status={"conditions": [theirs]})
        world.want(Carrier.BUFFER, {"x": (500, 4)})
        world.run(SETTLED)
        found = {each["type"]: each for each in world.api.objects[path]["status"]["conditions"]}
        assert found["Provisioning"] == theirs
        assert found["ReadyForProvisioning"]["lastTransitionTime"] == since, "it was so before"
        assert world.injected() == {"x": (500, 4)}


# ---- from one carrier to another


@pytest.mark.parametrize(
    ("configured", "drive", "served", "chosen"),
    [
        (None, Drive.PLAN, True, "virtual"),
        (None, Drive.ASSIST, True, "buffer"),
        (None, Drive.ASSIST, False, "pods"),
        (Carrier.PODS, Drive.PLAN, True, "pods"),
        (Carrier.BUFFER, Drive.ASSIST, False, "buffer"),
    ],
)
def test_the_default_is_what_there_is(configured: Carrier | None, drive: Drive, served: bool, chosen: str) -> None:
    with Carried(configured, drive=drive) as world:
        world.api.put(BUFFER_API, {"metadata": {}, "resources": [{"name": "capacitybuffers"}] * served})
        world.run(3)
        assert world.page("/slack")["carrier"] == chosen


def test_it_is_chosen_anew_where_the_cluster_serves_buffers_from_now_on() -> None:
    with Carried() as world:
        world.run(3)
        assert world.objects() == (0, 0, 1)
        world.api.put(BUFFER_API, {"metadata": {}, "resources": [{"name": "capacitybuffers"}]})
        world.run(SETTLED)
        assert world.objects() == (1, 1, 0)


def test_the_one_before_stays_until_the_new_one_carries_all_and_is_withdrawn_once() -> None:
    with Carried(Carrier.BUFFER) as world:
        world.run(3)
        priority_class = world.api.remove(PRIORITY_CLASS)
        world.want(Carrier.PODS, {"x": (500, 3)})
        world.run(SETTLED)
        assert (world.injected(), world.pods()) == ({"x": (500, 3)}, {})
        world.api.put(PRIORITY_CLASS, priority_class)
        world.run(SETTLED)
        assert world.objects() == (0, 0, 1)
        world.api.requests.clear()
        world.run(SETTLED)
        assert not [each for each in world.api.requests if "capacitybuffers" in each]


def test_withdrawing_is_tried_again() -> None:
    def refuse(request: str) -> None:
        if request.startswith("DELETE") and "capacitybuffers" in request:
            raise Refusal(503, "away")

    with Carried(Carrier.BUFFER) as world:
        world.run(3)
        world.want(Carrier.PODS, {"x": (500, 3)})
        world.api.before = refuse
        world.run(SETTLED)
        assert (len(world.of(BUFFERS)), world.pods()) == (1, {"x": [(500, 3)]})
        assert "away" in world.status()["slack"]["carried"]
        world.api.before = lambda _: None
        world.run(SETTLED)
        assert world.objects() == (0, 0, 1)
