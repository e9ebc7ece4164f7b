"""One object never keeps others from being seen: what was written to stop everybody is left out, or read as far as it
can be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

import pytest

from cagrpc.api.core.slack import MIRROR
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.kueue import Retries
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.view.model import NODES
from cagrpc.cluster.view.objects import Named, ObservedPod, PodReader, PodStage, reader_of
from cagrpc.cluster.view.sinks import Followed, Values
from cagrpc.cluster.view.workloads import quota
from cagrpc.controllers.admission_checks.model import ATTEMPT, purpose_of
from cagrpc.controllers.provisioning.conditions import ATTEMPTS, CONSUMED, attempts_of, consumed_of, merged, retry_at
from cagrpc.controllers.provisioning.conditions import failed as failure
from cagrpc.controllers.provisioning.store import read_request
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.informer.resource import Resource
from solver.model import PODS, Budget, NodeGroup, Problem
from solver.planning.solve import solve
from tests.support.controllers.cluster_objects import REPLICA_SETS, Fed, comparable, node, pod

_DIGITS = "9" * 5_000
"""More than Python's `int` reads."""


def _replica_set(name: str, owner: str = "", replicas: int = 3) -> kubernetes_pb2.ReplicaSet:
    template = kubernetes_pb2.PodTemplateSpec(spec=pod().spec)
    found = kubernetes_pb2.ReplicaSet(
        metadata={"name": name, "namespace": "default"},
        spec={"replicas": replicas, "template": template.SerializeToString()},
    )
    if owner:
        found.metadata.ownerReferences.add(kind="ReplicaSet", name=owner, controller=True)
    return found


@pytest.mark.parametrize("text", [_DIGITS, "١٢", "1_0", " 1", "-1", "1e3"])
def test_what_a_pod_or_workload_says_of_the_slack_may_be_anything(text: str) -> None:
    fed = Fed(Exclusion())
    fed.put(pod(annotations={MIRROR: text}))
    deployment = kubernetes_pb2.Deployment(metadata={"name": "d", "annotations": {MIRROR: text}})
    fed.put(deployment, path="/apis/apps/v1/deployments")
    state = fed.state()
    assert fed.waiting() == {"default/p": 1}
    assert len(state.slack.warnings) == 2


def test_numbers_in_what_was_written_by_us_may_be_anybodys() -> None:
    details = {
        CONSUMED: f"0={_DIGITS},{_DIGITS}=1,1=2,²=1,3=99999999",
        ATTEMPTS: _DIGITS,
        "retryAt": "9999-12-31T23:59:59-14:00",
    }
    status = {"provisioningClassDetails": details}
    request = read_request({"metadata": {"name": "r", "generation": _DIGITS}, "status": status}).value
    assert (consumed_of(request), attempts_of(request), request.generation) == ({1: 2}, 0, 1)
    assert merged(request, failure("x", "y"), retry_at(request)).details[CONSUMED]
    purpose = purpose_of({"metadata": {"annotations": {ATTEMPT: _DIGITS}}})
    assert purpose.attempt == 0
    assert Retries().pause_seconds(purpose.attempt) == Retries().base_seconds


@pytest.mark.parametrize("document", [{}, {"metadata": None}, {"metadata": {"name": 5}}, {"metadata": [], "status": 1}])
def test_a_quota_without_its_metadata_is_no_quota(document: Any) -> None:
    with suppress(InvalidInput):
        assert reader_of("ResourceQuota", quota)(document).value.left == {}


def test_text_that_is_no_utf_8_is_read_as_it_is_shown() -> None:
    """The API server takes protobuf and hands it on; only its JSON is always UTF-8."""
    fed = Fed()
    fed.nodes(node())
    data = pod(node="n1", annotations={"note": "NOTE"}).SerializeToString().replace(b"NOTE", b"\xff\xfe\xfd\xfc")
    seen = PodReader("gang", {"default-scheduler"}, "cagrpc").read(data)
    assert (seen.stage, seen.node, dict(seen.pod.spec.requests)) == (PodStage.MOVABLE, "n1", {"cpu": 1000})


def test_a_pod_that_cannot_be_meant_takes_from_its_node_all_the_same() -> None:
    fed = Fed()
    fed.nodes(node())
    strange = kubernetes_pb2.TopologySpreadConstraint(maxSkew=0, topologyKey="", whenUnsatisfiable="Perhaps")
    fed.put(pod(cpu="3", node="n1", topologySpreadConstraints=[strange]))
    assert fed.free() == {"cpu": 5000, PODS: 109}
    assert fed.state().warnings


def test_workloads_that_own_each_other_are_looked_at_once() -> None:
    fed = Fed(expects=True)
    fed.put(_replica_set("a", "a"), path=REPLICA_SETS)
    assert fed.model.arrivals().expected == 3
    fed.put(_replica_set("b", "d"), _replica_set("c", "b"), _replica_set("d", "c"), path=REPLICA_SETS)
    assert fed.model.arrivals().expected == 12
    fed.relist([], path=REPLICA_SETS)
    assert not any(fed.leftovers())


# ---- tables


def _sink(table: Values[int]) -> Followed[Named[int]]:
    return Followed(Resource("/api/v1/numbers", lambda number: Named("", number)), table, Lock())


def test_what_a_table_cannot_take_is_not_in_it_and_keeps_nothing_out(caplog: pytest.LogCaptureFixture) -> None:
    def changed(_: str, before: int | None, after: int | None) -> None:
        if after == 13:
            raise RuntimeError("a mistake")

    table: Values[int] = Values(changed)
    sink = _sink(table)
    sink.replaced([Named("a", 1), Named("b", 13), Named("c", 3)])
    assert (table.of, len(sink.left_out)) == ({"a": 1, "c": 3}, 1)
    sink.applied(Named("a", 13))
    assert (table.of, len(sink.left_out)) == ({"c": 3}, 2)
    sink.applied(Named("a", 2))
    sink.replaced([Named("a", 2), Named("b", 13)])
    assert (table.of, len(sink.left_out)) == ({"a": 2}, 1)
    sink.deleted(ObjectIdentity("", "", "b"))
    assert len(sink.left_out) == 0
    assert caplog.text.count("a is left out") == caplog.text.count("b is left out") == 1


def test_a_table_that_cannot_let_go_fails_no_list(caplog: pytest.LogCaptureFixture) -> None:
    def changed(_: str, before: int | None, after: int | None) -> None:
        if after is None:
            raise RuntimeError("a mistake")

    table: Values[int] = Values(changed)
    sink = _sink(table)
    sink.replaced([Named("a", 1)])
    sink.replaced([Named("b", 2)])
    sink.deleted(ObjectIdentity("", "", "b"))
    assert not table.of
    assert caplog.text.count("a mistake") > 0


_STEPS = (
    ("consumers", "put"),
    ("_slack", "put_pod"),
    ("_expected", "put_pod"),
    ("classes", "of"),
    ("_slack", "counted"),
)


@pytest.mark.parametrize("known_before", [False, True], ids=["new", "known"])
@pytest.mark.parametrize(("part", "step"), _STEPS)
def test_a_pod_is_never_half_counted(part: str, step: str, known_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, other = Fed(Exclusion(), expects=True), Fed(Exclusion(), expects=True)
    for each in (fed, other):
        each.nodes(node())
        each.put(pod("q", labels={"app": "web"}), pod("r", node="n1"))
    if known_before:
        fed.put(pod("p", "2", node="n1"), pod("w", "3"))
    _breaks(monkeypatch, getattr(fed.model._pods, part), step)
    fed.put(pod("p", "3", node="n1"), pod("w", "3", labels={"app": "new"}))
    monkeypatch.undo()
    assert comparable(fed.state()) == comparable(other.state())
    assert fed.model.arrivals() == other.model.arrivals()
    fed.relist([])
    fed.relist([], path=NODES)
    assert not any(fed.leftovers())


def _breaks(monkeypatch: pytest.MonkeyPatch, part: Any, step: str) -> None:
    before: Callable[..., Any] = getattr(part, step)

    def broken(seen: ObservedPod, *more: Any) -> Any:
        if seen.ref.name in ("p", "w"):
            raise RecursionError("a mistake")
        return before(seen, *more)

    monkeypatch.setattr(part, step, broken)


def test_no_pod_asks_for_more_than_planning_can_count() -> None:
    """One that did was refused with the whole problem, by whoever plans without looking for such."""
    fed = Fed()
    fed.put(pod("huge", "9223372036854775807"), pod("small", "1"))
    pod_sets = tuple(each.pod_set for each in fed.state().waiting)
    group = NodeGroup("g", allocatable={"cpu": 4000, PODS: 110}, price_usd_per_hour=0.1, max_size=3)
    plan = solve(Problem(pod_sets, (group,)), Budget(deterministic_seconds=2.0))
    assert [nodes.count for nodes in plan.nodes] == [1]
