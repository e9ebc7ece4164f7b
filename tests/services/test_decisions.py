"""Decision records: the ring buffer, the log line, and the choice that is taken up once."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from cagrpc.services.decisions import (
    CHOICE_SECONDS,
    KEPT_OPTIONS,
    LONGEST_KEY,
    MOST_PODS,
    ConsideredOption,
    Decision,
    DecisionLog,
    ExpanderChoice,
)
from tests.support.fleet import FakeClock


def _decision(chosen: str, number: int = 0) -> Decision:
    options = (ConsideredOption("a", 1, 3, ("ns/x",), (0.0, 1.5), 0.1, "cheapest"),)
    return Decision(float(number), options, chosen, "cheapest", "objective", 0.01)


def test_a_choice_is_taken_once_and_only_by_its_own_group() -> None:
    decisions = DecisionLog(FakeClock())
    decisions.record(_decision("a"), frozenset({"u1"}))
    assert decisions.take_choice("b") is None
    assert decisions.take_choice("a") == ExpanderChoice(frozenset({"u1"}), "cheapest")
    assert decisions.take_choice("a") is None


def test_a_choice_that_nobody_took_up_grows_old() -> None:
    clock = FakeClock()
    decisions = DecisionLog(clock)
    decisions.record(_decision("a"), frozenset({"u1"}))
    clock.advance(CHOICE_SECONDS + 1)
    assert decisions.take_choice("a") is None


@pytest.mark.parametrize("next_choice", ["b", ""])
def test_a_newer_decision_replaces_the_choice(next_choice: str) -> None:
    decisions = DecisionLog(FakeClock())
    decisions.record(_decision("a"), frozenset({"u1"}))
    decisions.record(_decision(next_choice), frozenset())
    assert decisions.take_choice("a") is None


def test_a_choice_counts_only_for_pods_that_wait_when_it_is_taken() -> None:
    waiting = {"u1", "u2", "u3"}
    decisions = DecisionLog(FakeClock(), pending=lambda pods: {pod: None for pod in pods if pod in waiting})
    decisions.record(_decision("a"), frozenset({"u1", "u2", "of somebody else", "never there"}))
    waiting.remove("u2")  # bound meanwhile
    assert decisions.take_choice("a") == ExpanderChoice(frozenset({"u1"}), "cheapest")


def test_a_choice_holds_no_more_than_an_increment_can() -> None:
    decisions = DecisionLog(FakeClock())
    decisions.record(_decision("a"), frozenset({"x" * (LONGEST_KEY + 1), "x" * LONGEST_KEY}))
    assert decisions.take_choice("a") == ExpanderChoice(frozenset({"x" * LONGEST_KEY}), "cheapest")
    decisions.record(_decision("a"), frozenset(map(str, range(MOST_PODS + 5))))
    choice = decisions.take_choice("a")
    assert choice is not None
    assert len(choice.pods) == MOST_PODS


def test_the_ring_keeps_the_latest_oldest_first() -> None:
    decisions = DecisionLog(FakeClock(), kept=3)
    for number in range(5):
        decisions.record(_decision("a", number), frozenset())
    assert [d.at_seconds for d in decisions.latest()] == [2.0, 3.0, 4.0]


def test_the_ring_keeps_fewer_decisions_of_many_options() -> None:
    decisions = DecisionLog(FakeClock())
    many = replace(_decision("a"), options=(ConsideredOption("a", 1, 3),) * (KEPT_OPTIONS // 4))
    for number in range(9):
        decisions.record(replace(many, at_seconds=float(number)))
    assert [d.at_seconds for d in decisions.latest()] == [5.0, 6.0, 7.0, 8.0]
    decisions.record(replace(many, options=many.options * 5))
    decisions.record(_decision("a", 10))
    assert [d.at_seconds for d in decisions.latest()] == [10.0]
    decisions.record(_decision("a", 11))
    assert [d.at_seconds for d in decisions.latest()] == [10.0, 11.0]


def test_each_decision_is_one_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cagrpc.decisions")
    decisions = DecisionLog(FakeClock())
    decision = _decision("a")
    decisions.record(decision, frozenset())
    (line,) = caplog.records
    assert "\n" not in line.getMessage()
    assert line.__dict__["decision"] == decision.as_json()
