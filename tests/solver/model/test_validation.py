"""Invalid problems are refused with every fault, place and remedy; those that are merely hopeless or huge
get a clear answer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from solver import (
    Budget,
    Limit,
    NodeGroup,
    PodSet,
    PodSpec,
    Problem,
    ProblemError,
    Requirement,
    Status,
    Toleration,
    explain,
    solve,
)
from solver.model import (
    HOSTNAME,
    DeviceAlternative,
    DeviceClaim,
    DeviceRequest,
    Devices,
    HostPort,
    NodeGroupIncrease,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    RunningPods,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.model.validation import validate
from solver.planning.rank import rank
from tests.support.solver.problems import group, node, pods, previous, spec

ALL = PodSelector()
SPREAD = TopologySpread("zone", 1, ALL)


def _term(key: str = "zone", *conditions: Requirement, namespaces: tuple[str, ...] | None = None) -> PodAffinityTerm:
    return PodAffinityTerm(key, PodSelector(conditions, namespaces))


def faults(problem: Problem) -> list[str]:
    with pytest.raises(ProblemError) as caught:
        validate(problem)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        pytest.param(
            {"topology_spread": (replace(SPREAD, max_skew=0),)},
            "topology spread over zone: max_skew 0 is not between 1 and 1000000000",
            id="skew",
        ),
        pytest.param(
            {"topology_spread": (replace(SPREAD, min_domains=0),)},
            "topology spread over zone: min_domains 0 is not between 1 and 1000000000",
            id="min-domains",
        ),
        pytest.param(
            {"topology_spread": (TopologySpread("zone", 1, ALL, WhenUnsatisfiable.SCHEDULE_ANYWAY, 2),)},
            "topology spread over zone: min_domains 2 needs DoNotSchedule, found ScheduleAnyway",
            id="min-domains-anyway",
        ),
        pytest.param(
            {"topology_spread": (replace(SPREAD, topology_key=""),)},
            "topology spread: the topology key is empty; name a node label, such as kubernetes.io/hostname",
            id="spread-key",
        ),
        pytest.param(
            {"topology_spread": (replace(SPREAD, selector=PodSelector((), ("other",))),)},
            "topology spread over zone: namespaces ['other'], but only the pod's own () is counted",
            id="spread-namespace",
        ),
        pytest.param(
            {"pod_affinity": (_term(""),)},
            "pod affinity: the topology key is empty; name a node label, such as kubernetes.io/hostname",
            id="affinity-key",
        ),
        pytest.param(
            {"pod_anti_affinity": (_term("zone", Requirement("app", Operator.GT, ("1",))),)},
            "pod anti-affinity over zone: app Gt: the operator must be one of In, NotIn, Exists, DoesNotExist",
            id="selector-operator",
        ),
        pytest.param(
            {"pod_affinity": (_term("zone", Requirement("app", Operator.IN)),)},
            "pod affinity over zone: app In: needs at least one value",
            id="no-values",
        ),
        pytest.param(
            {"pod_affinity": (_term("zone", Requirement("app", Operator.EXISTS, ("x",))),)},
            "pod affinity over zone: app Exists: takes no values, found ['x']",
            id="too-many-values",
        ),
        pytest.param(
            {"pod_affinity": (_term("zone", Requirement("", Operator.EXISTS)),)},
            "pod affinity over zone: a condition without a label key",
            id="no-label-key",
        ),
        pytest.param(
            {"pod_affinity": (_term(namespaces=("y", "x")),)},
            "pod affinity over zone: namespaces must be sorted, each once",
            id="namespaces",
        ),
        pytest.param(
            {"claims": (DeviceClaim((DeviceRequest("gpu", ()),)),)},
            "claim 0: request gpu: no alternatives, needs at least one",
            id="claim-without-alternatives",
        ),
        pytest.param(
            {"claims": (DeviceClaim((DeviceRequest("gpu", (DeviceAlternative("a", 0),)),)),)},
            "claim 0: request gpu: count 0 is not between 1 and 1000000000",
            id="claim-count",
        ),
        pytest.param(
            {"claims": (DeviceClaim((DeviceRequest("gpu", (DeviceAlternative("a"),)),) * 2),)},
            "claim 0: request gpu: given 2 times, names must be unique",
            id="claim-names",
        ),
        pytest.param(
            {
                "claims": (
                    DeviceClaim(
                        (DeviceRequest("gpu", (DeviceAlternative("a"),)),), ((frozenset({"nic"}), "example.com/numa"),)
                    ),
                )
            },
            "claim 0: constraint on example.com/numa: no request is called nic, only gpu",
            id="claim-constraint",
        ),
        pytest.param({"host_ports": (HostPort(0),)}, "host port 0 is not between 1 and 65535", id="port-zero"),
        pytest.param({"host_ports": (HostPort(70000),)}, "host port 70000 is not between 1 and 65535", id="port-large"),
        pytest.param(
            {"host_ports": (HostPort(80, "tcp"),)},
            "host port 80: protocol 'tcp' is none of TCP, UDP, SCTP",
            id="protocol",
        ),
        pytest.param(
            {"preferred_nodes": (PreferredNodes(0, NodeSelectorTerm()),)},
            "preferred node affinity: weight 0 is not between 1 and 100",
            id="node-weight",
        ),
        pytest.param(
            {"preferred_pods": (PreferredPods(101, _term(), anti=True),)},
            "preferred pod anti-affinity: weight 101 is not between 1 and 100",
            id="pod-weight",
        ),
        pytest.param(
            {"preferred_pods": (PreferredPods(1, _term("")),)},
            "preferred pod affinity: the topology key is empty; name a node label, such as kubernetes.io/hostname",
            id="preferred-key",
        ),
        pytest.param({"labels": (("b", ""), ("a", ""))}, "labels must be sorted by key, each key once", id="labels"),
        pytest.param(
            {"tolerations": (Toleration("x", "Gte"),)},
            "toleration of x: operator 'Gte' is none of Equal, Exists, Gt, Lt",
            id="toleration",
        ),
        pytest.param(
            {"tolerations": (Toleration("x", effect="Never"),)},
            "toleration of x: effect 'Never' is none of NoSchedule, PreferNoSchedule, NoExecute, nor empty for all",
            id="toleration-effect",
        ),
        pytest.param(
            {"affinity": (NodeSelectorTerm((Requirement("zone", Operator.NOT_IN),)),)},
            "node affinity: zone NotIn: needs at least one value",
            id="node-affinity",
        ),
    ],
)
def test_a_spec_that_cannot_be_meant(bad: dict[str, object], expected: str) -> None:
    wrong = replace(spec(), **bad)  # type: ignore[arg-type]
    places = {
        "pod set a": Problem((pods("a", 1, wrong),)),
        "daemon set 0": Problem((), daemon_sets=(wrong,)),
        "node n: running pods 0": Problem((), nodes=(node("n", 1, running=(RunningPods(wrong),)),)),
    }
    for place, problem in places.items():
        assert faults(problem) == [f"{place}: {expected}"]


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param(-1, "-1 is not between 0 and 1000000000000000", id="negative"),
        pytest.param(10**15 + 1, "1000000000000001 is not between 0 and 1000000000000000", id="absurd"),
        pytest.param(2**64, "18446744073709551616 is not between 0 and 1000000000000000", id="overflowing"),
        pytest.param(1.5, "1.5 is not a whole number of base units", id="fraction"),
        pytest.param(True, "True is not a whole number of base units", id="bool"),
    ],
)
def test_quantities(amount: int, expected: str) -> None:
    problem = Problem(
        (pods("a", 1, PodSpec((("cpu", amount),))),),
        (NodeGroup("g", {"cpu": amount}, 1.0, capacity={"cpu": amount}),),
        (node("n", amount),),
        daemon_sets=(PodSpec((("cpu", amount),)),),
    )
    assert faults(problem) == [
        f"pod set a: requests cpu: {expected}",
        f"node group g: allocatable cpu: {expected}",
        f"node group g: capacity cpu: {expected}",
        f"node n: free cpu: {expected}",
        f"daemon set 0: requests cpu: {expected}",
    ]


@pytest.mark.parametrize("count", [0, -3, 10**9 + 1])
def test_running_pods_are_at_least_one(count: int) -> None:
    standing = node("n", 1, running=(RunningPods(spec(), count),))
    assert faults(Problem((), nodes=(standing,))) == [
        f"node n: running pods 0: count {count} is not between 1 and 1000000000"
    ]


def test_devices_that_cannot_be_meant() -> None:
    bad = (Devices(-1, frozenset()), Devices(1, frozenset(), (("b", "1"), ("a", "2"))))
    for of, problem in (
        ("node group g", Problem((), (group("g", devices=bad),))),
        ("node n", Problem((), (), (node("n", 1, devices=bad),))),
    ):
        assert faults(problem) == [
            f"{of}: devices 0: count -1 is not a whole number between 0 and 1000000",
            f"{of}: devices 1: attributes must be sorted by name, each name once",
        ]


def test_a_previous_plan_must_be_one() -> None:
    twice = replace(previous({"g": 1}), increments=(NodeGroupIncrease("g", 1), NodeGroupIncrease("g", -2)))
    assert faults(Problem((), (group("g"),), previous=twice)) == [
        "previous plan: increment of g: given 2 times, names must be unique",
        "previous plan: increment of g: -2 nodes are not between 0 and 1000000000",
    ]


def test_a_previous_plan_may_name_groups_that_are_gone() -> None:
    plan = solve(
        Problem((pods("a", 1),), (group("g"),), previous=previous({"gone": 3})), Budget(deterministic_seconds=5)
    )
    assert [(each.node_group, each.delta) for each in plan.increments] == [("g", 1)]


SECONDS = "is not between 0 and 1000000000"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        pytest.param(Budget(math.inf), [f"budget: seconds inf {SECONDS}"], id="endless"),
        pytest.param(Budget(-1), [f"budget: seconds -1 {SECONDS}"], id="negative"),
        pytest.param(Budget(math.nan), [f"budget: seconds nan {SECONDS}"], id="nan"),
        pytest.param(
            Budget(deterministic_seconds=math.inf),
            [f"budget: deterministic_seconds inf {SECONDS}"],
            id="deterministic-endless",
        ),
        pytest.param(
            Budget(deterministic_seconds=-0.5),
            [f"budget: deterministic_seconds -0.5 {SECONDS}"],
            id="deterministic-negative",
        ),
        pytest.param(
            Budget(deterministic_seconds=math.nan),
            [f"budget: deterministic_seconds nan {SECONDS}"],
            id="deterministic-nan",
        ),
        pytest.param(
            Budget(workers=0), ["budget: workers 0 is not a whole number between 1 and 1000"], id="no-workers"
        ),
        pytest.param(
            Budget(workers=1.5),  # type: ignore[arg-type]
            ["budget: workers 1.5 is not a whole number between 1 and 1000"],
            id="half-a-worker",
        ),
        pytest.param(
            Budget(-1, math.nan, 1001),
            [
                f"budget: seconds -1 {SECONDS}",
                f"budget: deterministic_seconds nan {SECONDS}",
                "budget: workers 1001 is not a whole number between 1 and 1000",
            ],
            id="all-at-once",
        ),
    ],
)
def test_a_budget_that_cannot_be_meant(budget: Budget, expected: list[str]) -> None:
    wrong = Problem((pods("a", -1),), (group("g"),))
    count = "pod set a: count -1 is not between 0 and 1000000000"
    plan = previous({})
    for use in (
        lambda problem: solve(problem, budget),
        lambda problem: rank(problem, (), budget),
        lambda problem: explain(problem, plan, budget),
    ):
        for problem, told in ((replace(wrong, pod_sets=()), expected), (wrong, [*expected, count])):
            with pytest.raises(ProblemError) as caught:
                use(problem)
            assert list(caught.value.problems) == told


@pytest.mark.parametrize("budget", [Budget(0), Budget(deterministic_seconds=0)], ids=["wall", "deterministic"])
def test_no_time_at_all_is_enough_for_a_plan(budget: Budget) -> None:
    assert not solve(Problem((pods("a", 5),), (group("g"),)), budget).unplaced


def test_all_faults_are_told_at_once() -> None:
    wrong = spec(host_ports=(HostPort(0),), topology_spread=(replace(SPREAD, max_skew=0),))
    found = faults(
        Problem(
            (pods("a", -1, wrong), pods("b", 1, wrong)), (group("g", price=-1.0),), limits=(Limit("l", {"cpu": -1}),)
        )
    )
    assert len(found) == 7
    assert {fault.split(":")[0] for fault in found} == {"pod set a", "pod set b", "node group g", "limit l"}


class TestHopelessOrHuge:
    def test_a_pod_that_fits_nothing(self) -> None:
        plan = solve(Problem((pods("a", 1, spec(10**12)),), (group("g"),)), Budget(deterministic_seconds=5))
        assert plan.certificate.status is Status.INFEASIBLE
        assert "at most 4 is free" in plan.unplaced[0].reasons[0]

    def test_no_groups_at_all(self) -> None:
        plan = solve(Problem((pods("a", 5),)), Budget(deterministic_seconds=5))
        assert plan.certificate.status is Status.INFEASIBLE
        assert [(u.count, u.reasons) for u in plan.unplaced] == [
            (5, ("there are no nodes, and no node groups to open",))
        ]

    def test_nothing_at_all(self) -> None:
        plan = solve(Problem(()), Budget(deterministic_seconds=5))
        assert plan.certificate.status is Status.OPTIMAL
        assert plan.increments == ()

    @pytest.mark.parametrize(
        "constraint",
        [
            pytest.param({}, id="plain"),
            pytest.param({"topology_spread": (TopologySpread(HOSTNAME, 4, ALL),)}, id="host-spread"),
            pytest.param({"topology_spread": (SPREAD,)}, id="zone-spread"),
            pytest.param({"pod_affinity": (_term(),)}, id="zone-affinity"),
            pytest.param({"pod_anti_affinity": (_term(HOSTNAME),)}, id="host-anti-affinity"),
            pytest.param({"host_ports": (HostPort(80),)}, id="host-port"),
        ],
    )
    def test_a_thousand_million_pods_under_any_constraint(self, constraint: dict[str, object]) -> None:
        """Were anything done once per pod, this would take hours and more memory than there is."""
        wide = replace(spec(), **constraint)  # type: ignore[arg-type]
        alone = "pod_anti_affinity" in constraint or "host_ports" in constraint
        groups = tuple(group(f"g{zone}", max_size=10**9, labels={"zone": zone}, price=0.001) for zone in "ab")
        plan = solve(Problem((PodSet("a", wide, 10**9),), groups), Budget(deterministic_seconds=20))
        assert not plan.unplaced
        assert sum(each.delta for each in plan.increments) == (10**9 if alone else 250_000_000)
