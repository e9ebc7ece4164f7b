"""How long pods waited, with the increment that served them as exemplar."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics

from cagrpc.controllers.placement.metrics import WaitMetrics
from cagrpc.fleet.model import IncrementSpec
from cagrpc.services.http.metrics import Metrics
from tests.support.fleet import FakeClock, FleetHarness, group


def _family(waits: WaitMetrics) -> Metric:
    _, text = Metrics(waits.collectors).exposition("application/openmetrics-text; version=1.0.0")
    family: Metric
    (family,) = openmetrics.text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call] # no types
    return family


def test_a_pod_that_is_bound_counts_with_its_increment_and_others_without() -> None:
    fleet = FleetHarness(groups=[group("a")]).fleet()
    made = fleet.apply(IncrementSpec({"a": 1}, pods=frozenset({"u1", "u2"})))
    clock = FakeClock()
    waits = WaitMetrics(fleet, clock)
    waits.bound("somebody-else", 0.3)  # has no increment, and so is no exemplar
    waits.bound("u1", 20.0)
    waits.bound("u2", 400.0)  # in the same second: the increments are not searched again
    family = _family(waits)
    buckets = {each.labels["le"]: each for each in family.samples if "le" in each.labels}
    assert [buckets[le].value for le in ("0.5", "30.0", "600.0")] == [1, 2, 3]
    exemplars = {le: each.exemplar for le, each in buckets.items() if each.exemplar}
    assert {le: each.labels for le, each in exemplars.items()} == {"30.0": {"increment_id": made.id}}
    clock.advance(1.0)
    waits.bound("u2", 400.0)
    again = {each.labels["le"] for each in _family(waits).samples if each.exemplar}
    assert again == {"30.0", "600.0"}
