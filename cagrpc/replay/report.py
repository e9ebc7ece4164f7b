"""A replay's results as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from cagrpc.replay.conversation import Deletion, Increase, RecordedDecision, Replay
from cagrpc.tables import table
from solver.model.quantities import pluralize

VETO = "(none)"
MOST_DISAGREEMENTS = 20
_KINDS = {RecordedDecision: "decision", Increase: "increase", Deletion: "deletion"}


def as_json(replay: Replay) -> dict[str, Any]:
    """Return the replay as JSON. `events` are in order; `kind` is decision, increase or deletion."""
    return {
        "recording": replay.recording,
        "good": replay.good,
        "requests": replay.requests,
        "elapsed_seconds": round(replay.elapsed_seconds, 3),
        "events": [{"kind": _KINDS[type(event)], **asdict(event)} for event in replay.events],
        "methods": {name: asdict(totals) for name, totals in replay.methods.items()},
        "allowed_exceptions": dict(replay.exceptions),
        "disagreements": [asdict(each) for each in replay.disagreements],
        "left_by_recording": replay.left_by_recording,
        "instances_left": replay.instances_left,
    }


def print_report(replay: Replay, console: Console) -> None:
    """Print each event with its outcome, then totals."""
    console.print(_events(replay))
    console.print(_totals(replay))
    for reason, count in replay.exceptions.items():
        console.print(f"differs from the recording on purpose, {pluralize(count, 'answer')}: {reason}")
    for each in replay.disagreements[:MOST_DISAGREEMENTS]:
        console.print(f"line {each.line}, {each.method}: {each.problem}", style="red")
    if len(replay.disagreements) > MOST_DISAGREEMENTS:
        console.print(f"... and {len(replay.disagreements) - MOST_DISAGREEMENTS} more")
    if replay.left_by_recording:
        console.print(f"the recording ends with {_counts(replay.left_by_recording)}; deleted now")
    wrong = pluralize(len(replay.disagreements), "wrong answer")
    verdict = "every request was answered as recorded" if replay.good else wrong
    console.print(
        f"{replay.recording}: {pluralize(replay.requests, 'request')} in {replay.elapsed_seconds:.1f} s; {verdict};"
        f" instances left: {_counts(replay.instances_left) or 'none'}",
        style="green" if replay.good else "bold red",
    )


def _counts(instances: Mapping[str, int]) -> str:
    return ", ".join(f"{pluralize(count, 'instance')} in {node_group}" for node_group, count in instances.items())


def _events(replay: Replay) -> Any:
    result = table(f"Replay of {replay.recording}", "asked", "recorded", "cagrpc", "why, or what became of it")
    decided: RecordedDecision | None = None
    for event in replay.events:
        match event:
            case RecordedDecision():
                decided = event
                asked = "\n".join(
                    f"{o.node_group}: {pluralize(o.nodes, 'node')}, {pluralize(o.pods, 'pod')}" for o in event.options
                )
                why = f"{event.reason} [{event.milliseconds:.0f} ms]"
                result.add_row(f"BestOptions\n{asked}", event.recorded_choice or VETO, event.choice or VETO, why)
            case Increase():
                waited = f" after {event.settled_seconds:.1f} s" if event.code == "OK" else ""
                asked = f"IncreaseSize {event.node_group} +{event.delta}"
                other = _other_way(decided, event)
                result.add_row(asked, event.recorded_code, event.code, f"{event.outcome}{waited}{other}")
            case Deletion():
                asked = f"DeleteNodes {event.node_group}: {pluralize(event.instances, 'instance')}"
                result.add_row(asked, event.recorded_code, event.code, "")
        result.add_section()
    return result


def _other_way(decided: RecordedDecision | None, increase: Increase) -> str:
    """Return that the recording went on with its own choice where cagrpc made another one; empty where it did not."""
    if decided is None or decided.choice == decided.recorded_choice or increase.node_group != decided.recorded_choice:
        return ""
    return f"\nthe recording's way: cagrpc chose {decided.choice or VETO}"


def _totals(replay: Replay) -> Any:
    columns = ("requests", "as recorded", "allowed", "wrong")
    result = table("Answers by method", "method", *columns, right=columns)
    for name, totals in sorted(replay.methods.items()):
        numbers = (totals.requests, totals.as_recorded, totals.allowed_exceptions, totals.wrong)
        result.add_row(name, *(str(number) for number in numbers))
    return result
