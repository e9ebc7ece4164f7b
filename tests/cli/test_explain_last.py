"""`cagrpc explain --last` asks for what the server decides by: CA's questions, or its own rounds."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.cli.main import main
from cagrpc.inspection import client

ROUND = {
    "id": "r1", "at_seconds": 0.0, "why": "2 pods are new", "pods": 2, "nodes": 1, "on_existing": 0, "gap": 0.0,
    "planned_cost_per_hour": 1.0, "increments": [], "unplaced": [], "incomplete_gangs": [], "shortages": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("drive", "rounds", "code", "said"),
    [
        ("plan", [ROUND], 0, "Round r1, at 1970-01-01T00:00:00Z: 2 pods are new"),
        ("plan", [], 1, "has planned nothing yet: with drive: plan it plans while pods wait"),
        ("assist", [ROUND], 1, "has decided nothing yet: CA asks while pods are pending"),
    ],
)
def test_with_drive_plan_it_is_the_last_round(
    drive: str,
    rounds: list[Any],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages = {"/status": {"drive": drive}, "/plans?limit=1": rounds, "/decisions?limit=1": []}
    monkeypatch.setattr(client, "get_json", lambda _, path: pages[path])
    assert main(["explain", "--last"]) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
