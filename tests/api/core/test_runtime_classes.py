"""What a pod's RuntimeClass adds to it, as admission does."""

from __future__ import annotations

from typing import Any

from cagrpc.api.core.pods import pod_spec
from cagrpc.api.core.runtime_classes import RuntimeClass, read_runtime_class, with_runtime_class
from solver.model import PodSpec, Toleration

KATA: dict[str, Any] = {
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"cpu": "250m", "memory": "64Mi"}},
    "scheduling": {
        "nodeSelector": {"runtime": "kata"},
        "tolerations": [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
SPEC: dict[str, Any] = {
    "runtimeClassName": "kata",
    "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}


def _read(document: dict[str, Any]) -> RuntimeClass:
    problems: list[str] = []
    found = read_runtime_class(document, problems)
    assert not problems
    return found


def _planned(spec: Any) -> PodSpec:
    problems: list[str] = []
    found = pod_spec(spec, "spec", problems)
    assert not problems
    return found


def test_overhead_selector_and_tolerations_are_merged() -> None:
    found = _planned(with_runtime_class(SPEC, _read(KATA)))
    assert found == PodSpec(
        requests=(("cpu", 1250), ("memory", 64 * 2**20)),
        node_selector=(("disk", "ssd"), ("runtime", "kata")),
        tolerations=(Toleration("gpu", "Exists"), Toleration("kata", "Exists", "", "NoSchedule")),
    )


def test_a_pod_that_admission_has_seen_stays_as_it_is() -> None:
    once = with_runtime_class(SPEC, _read(KATA))
    assert _planned(with_runtime_class(once, _read(KATA))) == _planned(once)


def test_a_class_that_says_nothing_adds_nothing() -> None:
    assert with_runtime_class(SPEC, _read({"handler": "runc"})) == SPEC


def test_what_is_wrong_with_a_class_is_named() -> None:
    problems: list[str] = []
    read_runtime_class(
        {"overhead": {"podFixed": {"cpu": "much"}}, "scheduling": {"nodeSelector": {"a": True}, "tolerations": {}}},
        problems,
    )
    assert [problem.partition(": ")[0] for problem in problems] == [
        "overhead.podFixed.cpu",
        "scheduling.nodeSelector.a",
        "scheduling.tolerations",
    ]
