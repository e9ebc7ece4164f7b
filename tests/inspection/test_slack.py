"""`cagrpc slack` for people."""

from __future__ import annotations

import io
import re
from typing import Any

from cagrpc.inspection.pages import print_slack
from cagrpc.tables import console
from tests.support.serving import Serving, cagrpc


def target(name: str, wanted: int, held: int, pushed_out: int, cost: float) -> dict[str, Any]:
    counts = {"wanted": wanted, "held": held, "pushed_out": pushed_out, "left_over": wanted - held}
    return {"target": name, **counts, "cost_usd_per_hour": cost}


def printed(slack: dict[str, Any]) -> tuple[str, list[list[str]]]:
    """The text, and the cells of its tables."""
    stream = io.StringIO()
    print_slack(slack, console(stream))
    lines = stream.getvalue().splitlines()
    return stream.getvalue(), [[c.strip() for c in re.split("[│|]", line) if c.strip()] for line in lines]


def test_targets_their_sum_and_what_cannot_be_held() -> None:
    shape = {
        "name": "web/fixed/burst",
        "target": "web",
        "why": "fixed size burst",
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "wanted": 5,
        "held": 3,
        "pushed_out": 1,
        "left_over": 2,
        "nodes": {"n1": 2, "n2": 1},
    }
    targets = [target("web", 5, 3, 1, 0.125), target("batch", 2, 2, 0, 0.25)]
    warnings = ["slack web: no node that a pod of deployment/shop/db fits, so no capacity is reserved for it"]
    text, cells = printed(
        {"carrier": "pods", "problem": "", "targets": targets, "shapes": [shape], "warnings": warnings}
    )
    assert text.startswith("carrier: pods\n")
    assert [c.strip("┃ ") for c in heading(text)] == ["target", "wanted", "held", "pushed out", "left over", "cost"]
    assert ["web", "5", "3", "1", "2", "$0.12/h"] in cells
    assert ["all", "7", "5", "1", "2", "$0.38/h"] in cells
    (shown,) = [row for row in cells if row[0] == "web/fixed/burst"]
    assert shown[2:-1] == ["5", "3", "1", "2", "2"]
    assert "not held: slack web: no node that a pod of deployment/shop/db fits" in text


def heading(text: str) -> list[str]:
    line = next(line for line in text.splitlines() if "target" in line)
    return [cell for cell in re.split("[┃|]", line) if cell.strip()]


def test_why_it_cannot_be_carried_comes_first() -> None:
    one = target("web", 5, 3, 0, 0.0)
    text, cells = printed(
        {"carrier": "buffer", "problem": "no CapacityBuffers", "targets": [one], "shapes": [], "warnings": []}
    )
    assert text.startswith("carrier: buffer; no CapacityBuffers\n")
    assert not any(row[0] == "all" for row in cells if row), "one target is all of it"


def test_what_a_page_had_no_room_for_is_told() -> None:
    slack = {"carrier": "pods", "problem": "", "targets": [], "shapes": [], "warnings": [], "left_out": {"shapes": 7}}
    assert "not shown: 7 more of shapes\n" in printed(slack)[0]


def test_a_server_without_slack_says_so(demonstration: Serving) -> None:
    done = cagrpc("slack", "--http", demonstration.endpoints["http"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "no `slack` in the configuration" in done.stdout
    assert cagrpc("slack", "--http", demonstration.endpoints["http"], "--output", "json").stdout == "{}\n"
