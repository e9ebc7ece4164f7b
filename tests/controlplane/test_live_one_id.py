"""One increment followed by its id: in the log, in Events, in its trace and on its object, with the commands of
docs/guides/tracing.md; on the way the process is killed, and the next one goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cagrpc.runtime import tracing
from tests.documents.lists import not_run, pages, plain
from tests.support.commands import words
from tests.support.controlplane.deployed import clear_journal, install_crds
from tests.support.controlplane.kubectl import Kubectl
from tests.support.controlplane.live import Live, group
from tests.support.traces import Collector, attributes_of

PODS = 4
PAGE = "docs/guides/tracing.md"
EXAMPLE = "3f9a1c20be47"
"""The id that the page has."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


def test_an_increment_is_found_by_its_id_everywhere(
    live: Live, collector: Collector, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    admin = live.cluster.admin
    install_crds(admin)
    live.configure(
        [{"name": "all", "node_groups": [group("only", "4", "8Gi", 0.2)]}],
        {"*": {"boot": "3s"}},  # its Events, written every half second, are there before it is killed
        tracing=True,
        journal="cluster",
        namespace=live.cluster.namespace,
    )
    live.cluster.create_deployment("web", PODS, {"cpu": "1500m", "memory": "1Gi"})
    live.serve_until("after commit ready")
    serving = live.start()
    live.wait_for_running(PODS)
    live.wait_until_settled()
    (shown,) = live.increments()
    increment_id, plan_id = shown["id"], shown["plan"]
    subject = tracing.increment(increment_id)

    # on its object
    (found,) = admin.items("/apis/cagrpc.io/v1alpha1/increments", fieldSelector=f"metadata.name={increment_id}")
    assert (found["status"]["phase"], found["spec"]["plan"]) == ("done", plan_id)

    # in the trace, with which the second process went on
    live.wait_for(lambda: "released" in collector.of(subject), "its pods are bound, and the spans are there")
    spans = collector.of(subject)
    assert {"ready", "increment", "released"} <= spans.keys(), "what a killed process had not sent is lost"
    assert {attributes_of(each)["cagrpc.increment"] for each in spans.values()} == {increment_id}
    assert [link.trace_id.hex() for link in spans["increment"].links] == [f"{tracing.plan(plan_id).trace_id:032x}"]
    assert attributes_of(spans["ready"])["cagrpc.taken_over"] is True
    assert attributes_of(spans["released"])["cagrpc.bound"] == PODS

    # in Events of its pods
    events = live.cluster.path("events")
    live.wait_for(
        lambda: len(admin.items(events, labelSelector=f"cagrpc.io/increment={increment_id}")) == PODS, "its Events"
    )
    told = admin.items(events, labelSelector=f"cagrpc.io/increment={increment_id},cagrpc.io/plan={plan_id}")
    assert {each["reason"] for each in told} == {"Planned"}
    assert all(each["message"].startswith(f"increment {increment_id}: ") for each in told)

    # as the page has it
    typed = [each.replace(EXAMPLE, increment_id) for each in pages()[PAGE] if plain(each) not in not_run(PAGE)]
    answers = [kubectl.ask(live.cluster.plane.kubeconfig(), *words(each)[1:]) for each in typed]
    on_object, on_events = (each.stdout.splitlines() for each in answers)
    assert increment_id in on_object[1], answers
    assert sum(f"increment {increment_id}: 2 x only" in each for each in on_events) == PODS, answers

    # in the log
    lines = [json.loads(line) for line in serving.log().splitlines()]
    mine = [each for each in lines if each.get("increment") == increment_id]
    assert f"increment {increment_id} (only+2) is done" in [each["message"].partition(":")[0] for each in mine]
    assert {each["trace_id"] for each in mine} == {f"{subject.trace_id:032x}"}
    live.close()
    clear_journal(admin)
