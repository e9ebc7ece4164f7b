"""Traces: of an increment through restarts, of a round, of calls of CA; and a collector that is away."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import InvalidInput
from cagrpc.fleet.model import IncrementSpec, Origin
from cagrpc.runtime import tracing
from cagrpc.server import opentelemetry
from cagrpc.server.opentelemetry import OpenTelemetry
from tests.support.fleet import FakeClock, FleetHarness, ScriptedNodes, group
from tests.support.grpc_servers import PATHS, House, asking, chosen, option, pod
from tests.support.traces import traced
from tests.support.waiting import AMPLE_SECONDS, assert_ends
from tests.support.world import BOOT_SECONDS, World

CALLER = 0x0AF7651916CD43DD8448EB211C80319C
TRACEPARENT = ("traceparent", f"00-{CALLER:032x}-b7ad6b7169203331-01")


@pytest.fixture
def world() -> Iterator[World]:
    with World(group("a", cpu=4000), tracing=True) as made:
        yield made


def test_an_increment_is_one_trace_from_its_oldest_pod_to_the_last_that_is_bound(world: World) -> None:
    with traced(world.clock) as spans:
        created_at = world.clock()
        world.cluster.add(6, cpu=2000)
        world.run(3 * BOOT_SECONDS)
        assert not world.cluster.pending()
        (status,) = world.increments()
        subject = tracing.increment(status.id)
        phases = spans.seconds(subject)
        assert list(phases) == ["waiting", "increment", "planned", "creating", "ready", "released"]
        assert phases["waiting"] == (created_at, status.created_at_seconds)
        assert phases["planned"][0] == status.created_at_seconds
        assert phases["planned"][1] == phases["creating"][0]
        assert phases["creating"][1] == phases["ready"][0] >= status.created_at_seconds + BOOT_SECONDS
        assert phases["ready"][1] == phases["increment"][1] == phases["released"][0] == status.finished_at_seconds
        assert phases["increment"][0] == created_at
        whole = spans.one("increment")
        assert whole.parent is None
        assert whole.status.status_code is StatusCode.UNSET
        attributes = dict(whole.attributes or {})
        assert attributes["cagrpc.increment"] == status.id
        assert attributes["cagrpc.plan"] == status.increment.plan
        assert (attributes["cagrpc.node_groups"], attributes["cagrpc.pods"]) == ("a+3", 6)
        assert [link.context.trace_id for link in whole.links] == [tracing.plan(status.increment.plan).trace_id]
        for each in spans.of(subject):
            assert (each.attributes or {})["cagrpc.increment"] == status.id
            if each is not whole:
                assert each.parent is not None
                assert each.parent.span_id == subject.span_id("increment")
        assert (spans.one("released").attributes or {})["cagrpc.bound"] == 6


def test_a_round_has_its_steps(world: World) -> None:
    with traced(world.clock) as spans:
        world.cluster.add(2, cpu=2000)
        world.run(10)
        (status,) = world.increments()
        subject = tracing.plan(status.increment.plan)
        names = [each.name for each in spans.of(subject)]
        assert sorted(names) == ["checking", "committing", "plan", "reading", "solving"]
        whole = next(each for each in spans.of(subject) if each.name == "plan")
        assert whole.parent is None
        assert (whole.attributes or {})["cagrpc.nodes"] == 1
        context = whole.context
        assert context is not None
        for each in spans.of(subject):
            assert each is whole or (each.parent is not None and each.parent.span_id == context.span_id)


def test_another_process_goes_on_with_the_trace(world: World) -> None:
    with traced(world.clock) as spans:
        world.cluster.add(2, cpu=4000)
        world.run(5)
        (before,) = world.increments()
    world.restart()
    with traced(world.clock) as later:
        world.run(3 * BOOT_SECONDS)
        subject = tracing.increment(before.id)
        assert [each.name for each in spans.of(subject)] == ["waiting", "planned"]
        assert {each.name for each in later.of(subject)} == {"creating", "ready", "increment", "released"}
        creating = later.one("creating")
        assert (creating.attributes or {})["cagrpc.taken_over"] is True
        assert later.seconds(subject)["creating"][0] < world.clock() - BOOT_SECONDS, "as the journal has it"
        assert creating.parent is not None
        whole = later.one("increment").context
        assert whole is not None
        assert creating.parent.span_id == whole.span_id
        assert "cagrpc.taken_over" not in (later.one("ready").attributes or {})


def test_a_process_that_did_not_see_the_release_adds_nothing(world: World) -> None:
    with traced(world.clock):
        world.cluster.add(1, cpu=4000)
        world.run(3 * BOOT_SECONDS)
    world.restart()
    with traced(world.clock) as later:
        world.run(5)
        assert later.all() == ()


def test_pods_that_are_never_bound_end_the_trace_as_failed(world: World) -> None:
    with traced(world.clock) as spans:
        world.cluster.add(1, cpu=4000)
        world.cluster.scheduling = False
        world.run(700)
        released = spans.one("released")
        assert released.status.status_code is StatusCode.ERROR
        assert released.status.description == "1 pod not bound after 600 s"


def test_an_increment_that_is_rolled_back_has_failed_with_its_reason() -> None:
    of = FleetHarness(groups=[group("a")], options={"nodes": ScriptedNodes()})
    with traced(of.clock) as spans:
        fleet = of.fleet()
        status = fleet.apply(IncrementSpec({"a": 2}))
        fleet.reconcile()
        of.backend.fail(of.backend.ids()[0])
        of.clock.advance(5)
        fleet.reconcile()
        of.backend.finish_deletes()
        of.clock.advance(5)
        fleet.reconcile()
        whole = spans.one("increment")
        assert whole.status.status_code is StatusCode.ERROR
        assert "no capacity" in (whole.status.description or "")
        assert [each.name for each in spans.of(tracing.increment(status.id))][-1] == "rolling-back"
        fleet.close()


def test_one_that_is_withdrawn_has_not_failed() -> None:
    of = FleetHarness(groups=[group("a")])
    with traced(of.clock) as spans:
        fleet = of.fleet()
        status = fleet.apply(IncrementSpec({"a": 2}, origin=Origin.CAGRPC))
        fleet.withdraw(status.id, "nobody wants it")
        assert spans.one("increment").status.status_code is StatusCode.UNSET
        fleet.close()


def test_an_increase_follows_its_caller_and_names_its_increment() -> None:
    with (
        House(FleetHarness(groups=[group("cheap"), group("dear", price=0.4)])) as house,
        traced(house.harness.clock) as spans,
    ):
        pods = [pod(str(index)) for index in range(4)]
        assert (
            chosen(house.advice.ok("BestOptions", asking(option("cheap", 1, pods), option("dear", 1, pods)))) == "cheap"
        )
        request = pb.NodeGroupIncreaseSizeRequest(id="cheap", delta=1).SerializeToString()
        call = house._channels[0].unary_unary(PATHS["NodeGroupIncreaseSize"], None, None)
        call(request, timeout=AMPLE_SECONDS, metadata=(TRACEPARENT,))
        house.ca.ok("NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="cheap"))  # one of thousands: no span
        decision = spans.one("grpcplugin.Expander/BestOptions")
        assert decision.parent is None
        within = {
            each.name
            for each in spans.all()
            if each.parent is not None
            and decision.context is not None
            and each.parent.span_id == decision.context.span_id
        }
        assert within == {"decoding", "ranking"}
        increase = next(each for each in spans.all() if each.name.endswith("/NodeGroupIncreaseSize"))
        assert increase.context is not None
        assert increase.context.trace_id == CALLER
        assert (increase.attributes or {})["rpc.grpc.status_code"] == 0
        (status,) = house.fleet.snapshot.increments
        assert (spans.one("committing").attributes or {})["cagrpc.increment"] == status.id
        assert not [each for each in spans.all() if "TargetSize" in each.name]


def test_a_call_that_is_refused_has_failed_and_reads_have_spans_within_their_callers_trace() -> None:
    with House(FleetHarness(groups=[group("a")])) as house, traced(house.harness.clock) as spans:
        assert (
            house.ca.code("NodeGroupIncreaseSize", pb.NodeGroupIncreaseSizeRequest(id="b", delta=1))[0] == "NOT_FOUND"
        )
        increase = next(each for each in spans.all() if each.name.endswith("/NodeGroupIncreaseSize"))
        assert increase.status.status_code is StatusCode.ERROR
        assert (increase.attributes or {})["rpc.grpc.status_code"] == 5
        call = house._channels[0].unary_unary(PATHS["NodeGroups"], None, None)
        call(b"", timeout=AMPLE_SECONDS, metadata=(TRACEPARENT,))
        call(b"", timeout=AMPLE_SECONDS, metadata=(("traceparent", "nonsense"),))
        assert (
            sum(
                each.context is not None and each.context.trace_id == CALLER
                for each in spans.all()
                if each.name.endswith("/NodeGroups")
            )
            == 1
        )


@pytest.mark.parametrize("number", range(8))
def test_of_a_trace_all_is_sampled_or_nothing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    clock = FakeClock()
    subject = tracing.increment(f"increment-{number}")
    found = []
    for _ in range(2):  # two processes
        with traced(clock) as spans:
            for name in ("planned", "creating", "increment"):
                tracing.past(tracing.Past(subject, name, 1.0, 2.0, {}))
            found.append(len(spans.all()))
    assert found in ([0, 0], [3, 3])
    sampled = (subject.trace_id & (2**64 - 1)) < 2**63  # as the sampler has it
    assert found[0] == (3 if sampled else 0)


class Broken(SpanExporter):
    """Fails, and logs at each try, as exporters do."""

    def __init__(self) -> None:
        self.works = False
        self.tries = 0
        self.hangs = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.tries += 1
        while self.hangs:
            time.sleep(0.01)  # of a thread that nobody waits for
        if self.works:
            return SpanExportResult.SUCCESS
        logging.getLogger("opentelemetry.exporter").error("no collector, try %d", self.tries)
        return SpanExportResult.FAILURE


def test_a_collector_that_is_away_is_said_once_and_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exporter = Broken()
    reported = opentelemetry._Reported(exporter)
    for _ in range(50):
        reported.export(())
    exporter.works = True
    reported.export(())
    reported.export(())
    exporter.works = False
    reported.export(())
    assert [each.message for each in caplog.records if each.name.startswith("cagrpc")] == [
        "spans are not sent; those that do not fit into the queue are lost: no collector, try 1",
        "spans are sent again",
        "spans are not sent; those that do not fit into the queue are lost: no collector, try 53",
    ]


def test_a_collector_that_hangs_holds_nobody_and_takes_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Broken()
    exporter.hangs = True
    processor = BatchSpanProcessor(
        opentelemetry._Reported(exporter), schedule_delay_millis=1, max_queue_size=64, max_export_batch_size=32
    )
    tracer = OpenTelemetry(processor, instance="test")
    tracing.use(tracer)
    try:
        for _ in range(5_000):
            with tracing.span("work"):
                pass
        assert len(processor._batch_processor._queue) <= 64
        assert_ends(lambda: tracer.stop(0.2), "stopping while the exporter hangs")
        ours = [each.message for each in caplog.records if not each.name.startswith("opentelemetry")]
        assert ours == ["the last spans could not be sent within 0.2 s"]
        assert not logging.getLogger("opentelemetry").propagate, "a full queue is no news at each span"
    finally:
        exporter.hangs = False
        tracing.use(None)


def test_what_the_environment_says_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with pytest.raises(InvalidInput, match="OTEL_EXPORTER_OTLP_PROTOCOL: found http/protobuf, expected grpc"):
        opentelemetry.to_collector("test")


def test_without_a_tracer_a_span_costs_next_to_nothing() -> None:
    """Nothing but a few calls, counted."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            called.append(frame.f_code.co_name if event == "call" else repr(argument))

    sys.setprofile(note)
    try:
        with tracing.span("work"):
            pass
    finally:
        sys.setprofile(None)
    assert 0 < len(called) <= 12, called
