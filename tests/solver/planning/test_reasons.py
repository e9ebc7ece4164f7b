"""Reasons for pods that constraints between pods keep out: true, and the most telling one first."""

from __future__ import annotations

import pytest

from solver import Budget, Limit, PodSet, Problem, Requirement, solve
from solver.model import (
    DeviceAlternative,
    DeviceClaim,
    DeviceRequest,
    HostPort,
    Node,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    RunningPods,
    TopologySpread,
)
from tests.support.solver.problems import group, node, pods, spec

GHOSTS = PodSelector((Requirement("app", Operator.IN, ("ghost",)),))
GHOST = (("app", "ghost"),)
WEB = (("app", "web"),)
NEEDY = spec(labels=WEB, pod_affinity=(PodAffinityTerm("zone", GHOSTS),))
LONELY = "it has a required pod affinity over zone, and no matching pod runs or is planned"
GROUPS = tuple(group(f"group-{zone}", labels={"zone": zone}) for zone in "ab")
PORT = spec(host_ports=(HostPort(80),))


def reasons(problem: Problem, who: str = "a") -> tuple[str, ...]:
    plan = solve(problem, Budget(deterministic_seconds=5))
    (found,) = (u.reasons for u in plan.unplaced if plan.pod_classes[u.pod_class].example == who)
    return found


class TestAffinity:
    @pytest.mark.parametrize(
        "others",
        [
            pytest.param((), id="nobody"),
            pytest.param((pods("other", 1),), id="others"),
            pytest.param((pods("ghost", 1, spec(10**6, labels=GHOST)),), id="unserved"),
        ],
    )
    def test_to_pods_that_are_nowhere(self, others: tuple[PodSet, ...]) -> None:
        standing = (node("n", 4000, labels={"zone": "a"}), node("m", 4000, running=(RunningPods(spec(labels=WEB)),)))
        problem = Problem((pods("a", 2, NEEDY), *others), GROUPS, standing)
        assert reasons(problem)[0] == LONELY
        assert not any("excluded by pods" in reason for reason in reasons(problem))

    def test_what_it_has_often_is_said_once_and_what_is_much_is_counted(self) -> None:
        terms = [PodAffinityTerm(key, GHOSTS) for key in ("zone", "zone", "b", "c", "d", "e", "f", "g")]
        (first, *_) = reasons(Problem((pods("a", 1, spec(pod_affinity=tuple(terms))),), GROUPS))
        assert first.count("over zone") == 1
        assert "affinity over e and 2 more, and no matching pod runs" in first

    def test_to_pods_that_run_elsewhere(self) -> None:
        standing = (
            node("full", 0, labels={"zone": "a"}, running=(RunningPods(spec(labels=GHOST)),)),
            node("other", 4000, labels={"zone": ""}),  # an empty value is a domain, too
            node("nowhere", 4000),
        )
        assert reasons(Problem((pods("a", 2, NEEDY),), GROUPS[1:], standing)) == (
            "needs 1 cpu, none is free (node full)",
            "no label zone, over which it has a required pod affinity (node nowhere)",
            "no pod that its required pod affinity over zone selects runs there (node other)",
            "it has a required pod affinity over zone",
        )

    def test_to_pods_where_a_node_has_as_many_as_it_may(self) -> None:
        full = Node("full", {"cpu": 4000, "pods": 0})
        assert reasons(Problem((pods("a", 1, spec(1000)),), (), (full,))) == (
            "needs room for one more pod, none is free (node full)",
        )

    def test_on_a_node_that_is_not_ready_whatever_room_it_has(self) -> None:
        claims = (DeviceClaim((DeviceRequest("r", (DeviceAlternative("gpu"),)),)),)
        broken = Node("broken", {"cpu": 4000, "pods": 0}, ready=False)
        problem = Problem((pods("a", 1, spec(1000, claims=claims)), pods("b", 1, spec(9000))), (), (broken,))
        assert reasons(problem) == ("not Ready (node broken)",)
        assert reasons(problem, "b") == ("needs 9 cpu, at most 4 is free (node broken)", "not Ready (node broken)")

    def test_of_a_pod_kept_away_by_one_that_runs(self) -> None:
        guard = spec(pod_anti_affinity=(PodAffinityTerm("zone", PodSelector()),))
        standing = (node("n", 4000, labels={"zone": "a"}, running=(RunningPods(guard),)),)
        assert reasons(Problem((pods("a", 1),), (), standing)) == ("excluded by pods that run there (node n)",)


class TestOrder:
    SPREAD = spec(labels=WEB, topology_spread=(TopologySpread("zone", 1, PodSelector(), min_domains=3),))
    SAID = "it has a spread over zone with maxSkew 1 and minDomains 3"

    def test_the_spread_where_there_is_room(self) -> None:
        standing = (node("n", 500, labels={"zone": "a"}), node("m", 1000, labels={"zone": "b"}))
        assert reasons(Problem((pods("a", 5, self.SPREAD),), GROUPS, standing)) == (
            self.SAID,
            "the free room of 1 existing node that it fits is taken by other pods",
            "needs 1 cpu, at most 500m is free (node n)",
        )

    def test_room_that_is_left_is_not_said_to_be_taken(self) -> None:
        standing = tuple(node(f"n{zone}", 9000, labels={"zone": zone}) for zone in "ab")
        assert reasons(Problem((pods("a", 5, self.SPREAD),), (), standing)) == (self.SAID,)

    def test_capacity_where_there_is_none(self) -> None:
        problem = Problem((pods("a", 5, self.SPREAD),), GROUPS, limits=(Limit("cap", {"cpu": 4000}),))
        assert reasons(problem) == (
            "limit cap allows 4 cpu: no room for one more node of group-a, group-b",
            self.SAID,
        )


class TestHostPorts:
    SAID = "it has the host port 80"

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            pytest.param(
                spec(node_selector={"zone": "c"}, host_ports=(HostPort(80),)),
                "node selector zone=c not met (2 of 2 node groups and node n)",
                id="no-eligible-place",
            ),
            pytest.param(
                spec(9000, host_ports=(HostPort(80),)),
                "needs 9 cpu, at most 4 is free (2 of 2 node groups and node n)",
                id="nobody-has-it",
            ),
        ],
    )
    def test_are_left_out_where_they_stand_in_nobodys_way(self, asked: PodSpec, expected: str) -> None:
        found = reasons(Problem((pods("a", 2, asked),), GROUPS, (node("n", 4000),)))
        assert found[0] == expected
        assert self.SAID not in found

    def test_are_told_where_a_pod_that_runs_has_them(self) -> None:
        standing = (node("n", 4000, running=(RunningPods(PORT),)),)
        assert self.SAID in reasons(Problem((pods("a", 1, PORT),), (), standing))

    def test_are_told_first_where_only_they_are_short(self) -> None:
        assert reasons(Problem((pods("a", 2, PORT),), (), (node("n", 4000),))) == (self.SAID,)
