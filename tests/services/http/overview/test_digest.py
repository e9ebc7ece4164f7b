"""What the page is told is bounded, and has what matters of each page."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from cagrpc.controllers.fleet import group_as_json
from cagrpc.controllers.planning.records import PlanRecord
from cagrpc.errors import Unavailable
from cagrpc.runtime.controller import JsonList, JsonPage
from cagrpc.services.http.overview.digest import MOST_ROWS, Digest
from tests.support.overview import AT, BusyServer


def test_the_sections_have_what_the_pages_say() -> None:
    found = Digest().sections(BusyServer().pages())
    assert found["status"]["why_not_ready"] == "the journal is out of reach"
    assert found["status"]["warnings"] == [
        "the backend: no quota",
        "it expires",
        "objects of pods that cannot be read and are left out: 1",
        "nodes: forbidden",
        "instances whose node group nobody serves: i-0",
    ]
    first, second = found["fleet"]["tiers"]
    assert (first["weight"], second["weight"]) == (10, 0)
    assert (first["provisioners"], first["groups"], first["target_size"]) == (["provisioner-1"], 1, 3)
    assert (first["running"], first["creating"], first["failed"]) == (1, 1, 1)
    assert first["cost_usd_per_hour_said"] == "$0.30/h"
    assert [each["id"] for each in found["fleet"]["groups"]] == ["group-1", "group-0"]
    in_flight = found["increments"]["in_flight"]
    assert {each["phase"] for each in in_flight} == {"planned", "creating", "ready", "rolling-back"}
    assert {(each["nodes"], each["nodes_running"]) for each in in_flight[:2]} == {(3, 1)}
    assert {each["phase"] for each in found["increments"]["finished"]} == {"done", "rolled-back"}
    newest = found["decisions"]["decisions"][0]
    assert (newest["chosen"], newest["nodes"], newest["cost_usd_per_hour_said"]) == ("group-1", 2, "$0.20/h")
    assert [each["left_out"] for each in newest["options"]] == ["", "breaks a limit"]
    assert (found["rounds"]["rounds"][-1]["pods"], found["rounds"]["rounds"][-1]["unplaced"]) == (59, 16)
    assert found["waiting"]["unplaced"][0]["ways"] == ["raise it", "raise it"]
    assert (found["waiting"]["gangs"][0]["gang"], found["waiting"]["shortages"][0]["cause"]) == ("ml/gang", "sold out")
    assert found["requests"]["requests"][0]["explanation"] == "no capacity; 3 of 8 pods could be had now"
    assert found["slack"]["targets"][0]["held"] == 2
    first, _ = found["consolidation"]["held_by"]
    assert (first["namespace"], first["since_seconds"], first["until_seconds"]) == ("tenant-0", AT, AT + 900)
    assert (found["consolidation"]["waits_for"], found["consolidation"]["plan"]["steps_planned"]) == ("pods wait: 6", 0)


def test_how_full_nodes_are_is_told_by_group_and_of_the_emptiest_nodes() -> None:
    found = Digest().sections(BusyServer(many=5).pages())["nodes"]
    first, second = found["groups"]
    assert (first["id"], first["nodes"], first["cells"], first["quarters"]) == ("group-0", 4, "6420", [2, 1, 1, 0])
    assert first["used"] == {"cpu": 0.3, "memory": 0.0, "nvidia.com/gpu": 0.0}
    assert (second["id"], second["cells"]) == ("group-1", "8")
    assert [each["name"] for each in found["nodes"]] == [f"node-{number}" for number in range(5)]
    assert found["nodes"][1]["used"]["cpu"] == 0.2
    many = BusyServer(many=5000).pages()["/nodes"]
    large = Digest().sections({"/nodes": many})["nodes"]
    assert (len(large["nodes"]), large["nodes_left_out"], large["groups"][0]["cells"]) == (MOST_ROWS, 4900, "")
    assert large["groups"][0]["quarters"] == [1250, 1250, 1250, 1249]


def test_a_day_is_told_in_a_hundred_points_and_what_waited_is_not_lost() -> None:
    rows = [
        {"at_seconds": AT + 10 * each, "usd_per_hour": 1.0 + each, "nodes": each, "waiting_pods": 7 * (each == 502)}
        for each in range(1000)
    ]
    found = Digest().sections({"/history": JsonPage(lambda: JsonList(rows))})["history"]
    assert len(found["points"]) == MOST_ROWS
    assert found["points"][-1] == [AT + 9990, 1000.0, 999, 0]
    assert max(each[3] for each in found["points"]) == 7
    assert Digest().sections(BusyServer(many=0).pages())["history"] == {"points": []}


def test_what_users_name_like_money_is_none() -> None:
    page = BusyServer().pages()["/increments"]
    increments = page.get()
    assert isinstance(increments, JsonList)
    rows = [{**increments.as_json(each), "deltas": {"spot_per_hour": 2}} for each in increments.items]
    found = Digest().sections({"/increments": JsonPage(lambda: JsonList(rows))})["increments"]
    assert found["in_flight"][0]["deltas"] == {"spot_per_hour": 2}


def test_without_a_cluster_the_day_says_nothing_of_pods() -> None:
    rows = [{"at_seconds": AT + each, "usd_per_hour": 1.0, "nodes": 1, "waiting_pods": None} for each in range(3)]
    found = Digest().sections({"/history": JsonPage(lambda: JsonList(rows))})["history"]
    assert [each[3] for each in found["points"]] == [None, None, None]


def test_money_is_sent_as_it_is_said_everywhere() -> None:
    found = Digest().sections(BusyServer().pages())
    assert found["fleet"]["cost_usd_per_hour_said"] == "$0.60/h"
    assert found["increments"]["in_flight"][0]["cost_usd_per_hour_said"] == "$0.30/h"
    assert found["requests"]["requests"][0]["cost_per_hour_said"] == "$3.06/h"
    assert found["consolidation"]["plan"]["saving_usd_per_hour_said"] == "$0.20/h"


def test_a_request_that_says_its_cost_in_other_words_is_shown_without_it() -> None:
    rows = [{**each, "cost_per_hour": "<b>cheap</b>"} for each in BusyServer().requests()]
    found = Digest().sections({"/provisioningrequests": JsonPage(lambda: JsonList(rows))})["requests"]
    assert found["requests"][0]["cost_per_hour"] is None
    assert "cost_per_hour_said" not in found["requests"][0]


def test_groups_without_nodes_are_counted_and_not_listed() -> None:
    empty = [{**group_as_json(each), "target_size": 0, "instances": {}} for each in BusyServer().groups()]
    fleet = Digest().sections({"/nodegroups": JsonPage(lambda: JsonList(empty))})["fleet"]
    assert (fleet["groups"], fleet["groups_without_nodes"], fleet["groups_left_out"]) == ([], 2, 0)


def test_a_large_cluster_stays_small_and_is_counted() -> None:
    """300 groups with nodes, 1,800 increments, and as many kinds of waiting pods, also with long reasons."""
    pages = BusyServer(mark="x" * 1000, many=300).pages()
    found = Digest().sections(pages)
    assert len(json.dumps(found)) < 3_000_000  # were all names as long as these, which no names are
    small = Digest().sections(BusyServer(many=300).pages())
    pictures = [small.pop(name) for name in ("nodes", "history", "log")]
    assert len(json.dumps(pictures)) < 35_000
    assert len(json.dumps(small)) < 200_000
    assert (len(small["fleet"]["groups"]), small["fleet"]["groups_left_out"]) == (MOST_ROWS, 200)
    assert (len(small["increments"]["in_flight"]), small["increments"]["in_flight_left_out"]) == (MOST_ROWS, 1100)
    assert (small["waiting"]["left_out"], small["waiting"]["left_out_pods"]) == (200, 1600)
    assert (small["requests"]["left_out"], small["slack"]["shapes_left_out"]) == (200, 200)
    assert small["consolidation"]["held_by_left_out"] == 200
    assert len(small["waiting"]["warnings"]) == MOST_ROWS + 1
    assert small["waiting"]["warnings"][-1] == "… and 200 more"


def test_what_stays_the_same_is_told_the_same() -> None:
    busy, digest = BusyServer(), Digest()
    before = digest.sections(busy.pages())
    assert digest.sections(busy.pages()) == before
    busy.running = 2
    after = digest.sections(busy.pages())
    assert {name for name in after if after[name] != before[name]} == {"increments"}


def test_rows_of_what_has_not_changed_are_not_made_again() -> None:
    rounds, made = BusyServer().rounds(), []

    def as_json(record: PlanRecord) -> dict[str, Any]:
        made.append(record)
        return record.as_json()

    digest, pages = Digest(), {"/plans": JsonPage(lambda: JsonList(tuple(rounds), as_json))}
    digest.sections(pages)
    assert len(made) == len(rounds) + 1  # the last one once more, for what waits
    made.clear()
    rounds[3] = replace(rounds[3], pods=77)
    del rounds[0]
    rounds.append(replace(rounds[-1], pods=78))
    found = digest.sections(pages)["rounds"]["rounds"]
    assert (found[2]["pods"], found[-1]["pods"], len(found)) == (77, 78, 20)
    assert made == [rounds[2], rounds[-1], rounds[-1]]


def test_one_page_that_fails_keeps_no_other_from_being_shown(caplog: pytest.LogCaptureFixture) -> None:
    def unavailable() -> JsonList:
        raise Unavailable("the list is still to come")

    pages = {**BusyServer().pages(), "/slack": JsonPage(unavailable), "/increments": JsonPage(lambda: JsonList([{}]))}
    with caplog.at_level(logging.ERROR):
        found = Digest().sections(pages)
    assert found["slack"] == {"problem": "the list is still to come"}
    assert found["increments"]["problem"].startswith("failed unexpectedly")
    assert found["requests"]["requests"]


def test_numbers_that_json_has_not_are_null() -> None:
    busy = BusyServer()
    rounds = [{**each.as_json(), "gap": float("inf")} for each in busy.rounds()]
    found = Digest().sections({"/plans": JsonPage(lambda: JsonList(rounds))})
    json.dumps(found, allow_nan=False)
    assert found["rounds"]["rounds"][0]["gap"] is None
