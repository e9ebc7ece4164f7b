"""Each attack of `bench.hostile` at a tiny size: it measures what it says, and is ended where it exceeds its bounds."""

from __future__ import annotations

import re
from functools import partial

import pytest

from bench.hostile import caps, escapes, held, reading, sockets, solving
from bench.hostile.__main__ import ATTACKS, Bounds, run, times
from bench.hostile.meter import Meter, Totals
from solver import Budget
from tests.support.serving import Serving

SIZE = 6


def said(attack: partial[None]) -> str:
    lines: list[str] = []
    meter = Meter(lines.append)
    attack(meter=meter)
    rows = [line for line in lines if "s CPU" in line]
    assert rows
    assert meter.totals.cpu_seconds == pytest.approx(sum(float(row.split()[-5]) for row in rows), abs=0.01 * len(rows))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("attack", "found"),
    [
        (partial(reading.terms, pods=SIZE), "a state with one more such pod"),
        (partial(reading.namespaces, count=SIZE), "a label of one namespace changes"),
        (partial(reading.quota, workloads=SIZE), f"expected={2 * SIZE}"),
        (partial(reading.owners, workloads=SIZE), f"expected={2 * SIZE}"),
        (partial(reading.expressions, count=1), "bytes were written; planned with"),
        (partial(reading.patterns, count=1), "1 patterns like"),
        (partial(caps.expression_bytes, namespaces=1), "2 kinds of pods wait for their turn"),
        (partial(caps.expression_steps, devices=SIZE), "0 of 1 kinds of pods wait for their turn; first: planned with"),
        (partial(caps.programs, patterns=SIZE), "0 of 1 kinds of pods wait for their turn; first: planned with"),
        (partial(caps.terms, pods=2), "2 kinds of pods are planned with"),
        (partial(caps.spreads, pods=2), "2 kinds of pods are planned with"),
        (partial(caps.lists, pods=2), "2 kinds of pods are planned with"),
        (partial(caps.budgets, count=SIZE), "after one of them has changed"),
        (partial(caps.one_claim, pods=SIZE), "a state with one more"),
        (partial(caps.children, workloads=SIZE), "a pod of each comes"),
        (partial(caps.replicas, workloads=2), "when those to come are too late"),
        (partial(caps.stateful_sets, workloads=1), "1 StatefulSets come"),
        (partial(solving.machines, nodes=SIZE, budget=Budget(deterministic_seconds=0.1)), "a state with it"),
        (partial(solving.claims, pods=SIZE, budget=Budget(deterministic_seconds=0.1)), "pods are left out"),
        (partial(escapes.escapes, count=1), "cagrpc status writes these control characters"),
        (partial(held.consolidation, minutes=30), "of 30 looks nothing may be begun"),
    ],
    ids=lambda each: each.func.__name__ if isinstance(each, partial) else "",
)
def test_what_objects_do(attack: partial[None], found: str) -> None:
    assert found in said(attack)


@pytest.mark.parametrize("kind", solving.KINDS)
def test_what_pods_do_to_the_planner(kind: str) -> None:
    budget = Budget(deterministic_seconds=0.1)
    assert re.search(r"\d+ pods are left out, the gap is", said(partial(solving.solving, kind, pods=2, budget=budget)))


def test_what_peers_do(demonstration: Serving) -> None:
    """It answers in the end, whatever it did before."""
    silence = partial(sockets.be_silent, serving=demonstration, connections=SIZE, pause_seconds=0.05)
    assert said(silence).endswith("s")
    flood = said(partial(sockets.flood, serving=demonstration, seconds=0.1, peers=2))
    assert re.search(r"[1-9]\d* frames were sent; others: ", flood)


def test_an_attack_has_a_process_that_is_ended_at_its_bounds(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("chain", 2, Bounds(0.0, 1e6)) == "it takes more than 0 s"
    assert run("chain", 2, Bounds(1e6, 1.0)) == "it takes more than 1 MiB"
    once = run("chain", 2, Bounds(1e6, 1e6))
    assert isinstance(once, Totals)
    assert "expected=4" in capfd.readouterr().out


def test_twice_the_size_is_compared() -> None:
    once = Totals(cpu_seconds=1.0, grown_mib=1.0)
    found = times(once, Totals(2.5, 1.9))
    assert found == "twice the size: CPU 2.5 times, goal at most 2.3: not met; memory too little to tell"
    assert "CPU 2.0 times, goal at most 2.3: met; memory 40.0 times" in times(once, Totals(2.0, 40.0))
    assert "not measured" in times(once, "it takes more than 1 s")


def test_all_have_a_name() -> None:
    kinds = (*solving.KINDS, "mixed", "machines", "claims")
    assert {name for name in ATTACKS if name.startswith("solve-")} == {f"solve-{kind}" for kind in kinds}
