"""`cagrpc status` for people: what matters now, in one screen; the rest with --verbose."""

from __future__ import annotations

import io
from typing import Any

from cagrpc.inspection.status import ServerPages, print_round, print_status
from cagrpc.tables import console

READY = {"ready": True, "why_not_ready": "", "increments_in_flight": 0, "drive": "plan", "waiting_pods": 4}
INCREMENT = {
    "id": "ab12", "phase": "creating", "deltas": {"m7i.large": 3, "g4dn.xlarge": 1}, "pods": 9, "requests": [],
    "message": "",
}  # fmt: skip
PLAN: dict[str, Any] = {
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
    "unplaced": [],
    "incomplete_gangs": [],
    "limited": None,
    "shortages": [],
    "warnings": [],
}


def group(provisioner: str, weight: int, price: float, nodes: int, **instances: int) -> dict[str, Any]:
    named = {"id": f"{provisioner}/{price}", "provisioner": provisioner, "weight": weight}
    return {**named, "price_usd_per_hour": price, "target_size": nodes, "instances": instances}


def printed(
    status: dict[str, Any],
    increments: list[dict[str, Any]] | None = None,
    plans: list[dict[str, Any]] | None = None,
    groups: list[dict[str, Any]] | None = None,
    *,
    verbose: bool = False,
) -> str:
    stream = io.StringIO()
    pages = ServerPages(status, increments or [], plans or [], groups or [])
    print_status(pages, console(stream), verbose=verbose)
    return stream.getvalue()


def cells(text: str) -> list[list[str]]:
    return [line.strip("│").split() for line in text.replace("│", " ").splitlines()]


def test_a_server_with_nothing_to_do_says_so_in_two_lines() -> None:
    quiet = {**READY, "waiting_pods": 0}
    assert printed(quiet) == "ready\n0 nodes; no pending pod; no increment in flight\n"


def test_nodes_and_their_cost_by_provisioner() -> None:
    groups = [
        group("spot", 10, 0.25, 2, running=1, creating=1),
        group("reserved", 100, 1.0, 3, running=3),
        group("reserved", 100, 0.5, 0, deleting=1),
        group("empty", 50, 1.0, 0),
    ]
    text = printed(READY, groups=groups)
    assert "5 nodes for $3.50/h ($2,555/month); 4 pending pods; no increment in flight" in text
    rows = [row for row in cells(text) if row and row[0] in ("reserved", "spot", "empty")]
    assert rows == [
        ["reserved", "100", "3", "0", "3", "1", "0", "$3.00/h"],
        ["spot", "10", "2", "1", "1", "0", "0", "$0.50/h"],
    ]


def test_pods_that_wait_are_grouped_by_why() -> None:
    cpu = {"reasons": ["needs 9 cpu", "the other", "a third"], "ways": ["add 1 cpu"]}
    plan = {
        **PLAN,
        "unplaced": [
            {"count": 2, "example": "default/a", **cpu},
            {"count": 3, "example": "default/b", **cpu},
            {"count": 9, "example": "default/gone", **cpu, "waiting": 0},
            {"count": 7, "waiting": 6, "example": "default/c", "reasons": ["no zone"], "ways": []},
        ],
    }
    text = printed(READY, plans=[plan])
    assert "6 pods like default/c: no zone. What would serve it: not known yet\n" in text
    assert "5 pods like default/a and 1 other kind: needs 9 cpu; the other. What would serve it: add 1 cpu\n" in text
    assert "gone" not in text


def test_few_causes_are_told_and_the_rest_counted() -> None:
    waiting = [{"count": 1, "example": f"default/{n}", "reasons": [f"cause {n}"], "ways": ["w"]} for n in range(9)]
    assert "and 4 pods for 4 other causes: see /plans\n" in printed(READY, plans=[{**PLAN, "unplaced": waiting}])


def test_consolidation_says_what_it_would_save_and_what_holds_it() -> None:
    plan = {
        "cost_usd_per_hour": 3.2,
        "cost_after_usd_per_hour": 0.4,
        "least_usd_per_hour": 0.4,
        "least_if_all_moved_usd_per_hour": 0.2,
        "steps_planned": 2,
        "stays": [{"reason": "it is not Ready", "nodes": 1, "examples": []}],
    }
    held = "pods wait: 4 (namespace web until 2026-01-01T00:00:00Z at the latest)"
    shown = {"mode": "on", "waits_for": held, "plan": plan, "under_way": None}
    last = {"phase": "done", "finished_at_seconds": 3600.0, "message": "1 node deleted"}
    status = {**READY, "consolidation": {**shown, "last": last}}
    text = " ".join(printed(status).split())
    assert f"consolidation (on): {held}; 2 steps would save $2.80/h ($2,044/month) of $3.20/h" in text
    assert "not Ready" not in text
    text = printed(status, verbose=True)
    assert "  proven: $0.40/h at least, $0.20/h if every pod could be moved\n" in text
    assert "  it is not Ready: 1 node\n" in text
    assert "  last step: done, 1970-01-01T01:00:00Z: 1 node deleted\n" in text
    step = {"id": "ab12", "reason": "Empty", "nodes": ["a"], "pods_moved": 3, "phase": "moving"}
    on = {"mode": "on", "waits_for": "2 pods to run again", "plan": None, "under_way": step, "last": last}
    text = printed({**READY, "consolidation": on}, verbose=True)
    assert "step ab12 (Empty, 1 node, 3 pods) is moving, waits for 2 pods to run again\n" in text
    assert "last step" not in text


def test_why_it_is_not_ready_and_what_is_in_flight() -> None:
    status = {**READY, "ready": False, "why_not_ready": "the API server is out of reach"}
    done = {**INCREMENT, "id": "cd34", "phase": "done", "message": ""}
    text = printed(status, [{**INCREMENT, "message": "instances running: 2 of 4"}, done])
    assert text.startswith("not ready: the API server is out of reach\n")
    assert "m7i.large+3, g4dn.xlarge+1" in text
    assert "instances running: 2 of 4" in text
    assert "cd34" not in text


def test_an_increment_for_requests_is_not_for_pods() -> None:
    assert "2 requests" in printed(READY, [{**INCREMENT, "pods": 0, "requests": ["u1", "u2"]}])


def test_what_somebody_should_look_at_is_a_warning() -> None:
    status = {**READY, "backend_problem": "no answer", "not_followed": {"csinodes": "not allowed"}, "certificates": []}
    text = printed(status, plans=[{**PLAN, "warnings": ["namespace a: 3 pods planned without preferences"]}])
    assert "warning: the backend: no answer\n" in text
    assert "warning: csinodes: not allowed\n" in text
    assert "warning: namespace a: 3 pods planned without preferences\n" in text


def test_all_of_the_status_and_no_python_with_verbose() -> None:
    certificate = {"listener": "provider", "certificate": "server", "expires_seconds": 3600.0, "warning": ""}
    status = {
        **READY,
        "certificates": [certificate],
        "scale_down": {"may go": 2, "in use": 3},
        "loops": {"fleet": "0 s"},
    }
    assert "loops" not in printed(status)
    text = printed(status, verbose=True)
    assert "certificates: server of provider until 1970-01-01T01:00:00Z\n" in text
    assert "scale down: may go: 2, in use: 3\n" in text
    assert not set("{}[]'") & set(text)


def test_a_round_with_what_it_left_out() -> None:
    plan = {
        **PLAN,
        "incomplete_gangs": [{"gang": "default/g", "pods": 3, "needed": 5}],
        "limited": {"text": "limited: node group a may have 1 node; without it, 1 more pod is served"},
        "shortages": [{"offering": "m7i.large/zone-a", "until_seconds": 3659.5, "cause": "no capacity"}],
    }
    text = printed(READY, plans=[plan], verbose=True)
    for told in ("1970-01-01T01:00:00Z", "$1.50/h", "1.25%", "times"):
        assert told in text
    assert "gang default/g is not complete: it has 3 of 5 pods\n" in text
    assert "backed off after a shortage: m7i.large/zone-a until 1970-01-01T01:01:00Z (no capacity)\n" in text
    assert "limited: node group a may have 1 node; without it, 1 more pod is served\n" in text
    assert "Planning rounds" not in printed(READY, plans=[plan])


def test_a_round_explains_itself() -> None:
    ordered = {
        "id": "ab12",
        "node_groups": {"m7i.large": 3},
        "phase": "creating",
        "message": "instances running: 1 of 3",
    }
    waiting = {"count": 2, "example": "default/a", "reasons": ["needs 9 cpu"], "ways": ["add 1 cpu"]}
    plan = {
        **PLAN,
        "id": "r1",
        "why": "2 pods are new",
        "on_existing": 1,
        "increments": [ordered],
        "unplaced": [waiting],
    }
    stream = io.StringIO()
    print_round(plan, console(stream))
    assert stream.getvalue().splitlines() == [
        "Round r1, at 1970-01-01T01:00:00Z: 2 pods are new",
        "12 pods planned: 4 new nodes for $1.50/h (gap 1.25% for those served), 1 on existing nodes, 2",
        "  without a place",
        "  increment ab12 creating: m7i.large+3: instances running: 1 of 3",
        "2 pods like default/a: needs 9 cpu. What would serve it: add 1 cpu",
    ]
