"""Metrics of gRPC calls, and the increment that a call has made as their exemplar."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import OutOfRange
from cagrpc.services.grpc.metrics import CallMetrics
from cagrpc.services.grpc.provider import Provider
from cagrpc.services.grpc.status import CallContext
from cagrpc.services.http.metrics import Metrics
from tests.support.fleet import FleetHarness, group

METHOD = "NodeGroupIncreaseSize"


def test_the_increment_of_a_call_is_its_exemplar() -> None:
    fleet = FleetHarness(groups=[group("a", max_size=3)]).fleet()
    increase, metrics = Provider(fleet).methods()[METHOD], CallMetrics()
    made, refused = CallContext(METHOD), CallContext(METHOD)
    increase(pb.NodeGroupIncreaseSizeRequest(id="a", delta=2).SerializeToString(), made)
    with pytest.raises(OutOfRange):
        increase(pb.NodeGroupIncreaseSizeRequest(id="a", delta=2).SerializeToString(), refused)
    (status,) = fleet.snapshot.increments
    assert (made.increments, refused.increments) == ([status.id], [])

    metrics.observe(METHOD, "OK", 0.3, made.increments)
    metrics.observe(METHOD, "OUT_OF_RANGE", 0.3, refused.increments)
    _, text = Metrics(metrics.collectors).exposition("application/openmetrics-text; version=1.0.0")
    found = {
        (sample.labels["code"], sample.labels["le"]): sample.exemplar.labels
        for family in openmetrics.text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call] # no types
        for sample in family.samples
        if sample.exemplar
    }
    assert found == {("OK", "0.5"): {"increment_id": status.id}}
