"""`cagrpc status` for people: what matters now comes first."""

from __future__ import annotations

import io
from typing import Any

from cagrpc.inspection.status import print_status
from cagrpc.tables import console


def printed(status: dict[str, Any], increments: list[dict[str, Any]], plans: list[dict[str, Any]]) -> str:
    stream = io.StringIO()
    print_status(status, increments, plans, console(stream))
    return stream.getvalue()


READY = {"ready": True, "why_not_ready": "", "increments_in_flight": 0, "drive": "plan", "waiting_pods": 4}
INCREMENT = {"id": "ab12", "phase": "creating", "deltas": {"m7i.large": 3, "g4dn.xlarge": 1}, "pods": 9, "requests": []}


def test_a_server_with_nothing_to_do_says_so() -> None:
    assert printed(READY, [], []) == "ready\ndrive: plan\nwaiting pods: 4\nno increment is in flight\n"


def test_counts_by_name_are_told_one_after_the_other() -> None:
    text = printed({**READY, "scale_down": {"may go": 2, "in use": 3}, "nothing": {}}, [], [])
    assert "scale down: may go: 2, in use: 3\nno increment" in text


def test_consolidation_says_what_it_would_save_and_what_it_does() -> None:
    plan = {
        "cost_usd_per_hour": 3.2,
        "cost_after_usd_per_hour": 0.4,
        "least_usd_per_hour": 0.4,
        "least_if_all_moved_usd_per_hour": 0.2,
        "steps_planned": 2,
        "stays": [{"reason": "it is not Ready", "nodes": 1, "examples": []}],
    }
    dry = {"mode": "dry-run", "waits_for": "it is a dry run: nothing is changed", "plan": plan}
    last = {"phase": "done", "finished_at_seconds": 3600.0, "message": "1 node deleted"}
    text = printed({**READY, "consolidation": {**dry, "under_way": None, "last": last}}, [], [])
    assert "consolidation: dry-run; it is a dry run: nothing is changed\n" in text
    assert "  $3.20/h now, $0.40/h after 2 steps, $0.40/h at least, $0.20/h if all could be moved\n" in text
    assert "  it is not Ready: 1 node\n" in text
    assert "  last step: done, 1970-01-01T01:00:00Z: 1 node deleted\n" in text
    step = {"id": "ab12", "reason": "Empty", "nodes": ["a"], "pods_moved": 3, "phase": "moving"}
    on = {"mode": "on", "waits_for": "2 pods to run again", "plan": None, "under_way": step, "last": last}
    text = printed({**READY, "consolidation": on}, [], [])
    assert "step ab12 (Empty, 1 node, 3 pods) is moving, waits for 2 pods to run again\n" in text
    assert "last step" not in text


def test_why_it_is_not_ready_and_what_is_in_flight() -> None:
    status = {**READY, "ready": False, "why_not_ready": "the API server is out of reach"}
    done = {**INCREMENT, "id": "cd34", "phase": "done", "message": ""}
    text = printed(status, [{**INCREMENT, "message": "instances running: 2 of 4"}, done], [])
    assert text.startswith("not ready: the API server is out of reach\n")
    assert "m7i.large+3, g4dn.xlarge+1" in text
    assert "instances running: 2 of 4" in text
    assert "cd34" not in text


def test_an_increment_for_requests_is_not_for_pods() -> None:
    text = printed(READY, [{**INCREMENT, "pods": 0, "requests": ["u1", "u2"], "message": ""}], [])
    assert "2 requests" in text


def test_a_round_with_what_it_left_out() -> None:
    plan = {
        "at_seconds": 3600.0,
        "pods": 12,
        "nodes": 4,
        "planned_cost_per_hour": 1.5,
        "gap": 0.0125,
        "elapsed_seconds": 0.5,
        "increments": [
            {"node_groups": {"m7i.large": 3}, "phase": "rolled-back"},
            *[{"node_groups": {"m7i.large": 1}, "phase": "done"}] * 4,
        ],
        "unplaced": [{"count": 2, "example": "default/a", "reasons": ["needs 9 cpu"], "ways": ["add 1 cpu"]}],
        "incomplete_gangs": [{"gang": "default/g", "pods": 3, "needed": 5}],
        "limited": {"text": "limited: node group a may have 1 node; without it 1 pod more is served"},
        "shortages": [{"offering": "m7i.large/zone-a", "until_seconds": 3659.5, "cause": "no capacity"}],
    }
    text = printed(READY, [], [plan])
    for told in ("1970-01-01T01:00:00Z", "$1.50/h", "1.25%", "m7i.large+3 (rolled-back)", "m7i.large+1 (done) 4 times"):
        assert told in text
    assert "not planned: 2 pods like default/a: needs 9 cpu. What would serve it: add 1 cpu\n" in text
    assert "not planned: gang default/g is not complete: it has 3 of 5 pods\n" in text
    assert "backed off after a shortage: m7i.large/zone-a until 1970-01-01T01:01:00Z (no capacity)\n" in text
    assert "limited: node group a may have 1 node; without it 1 pod more is served\n" in text
