"""What holds of the slack of every cluster: random small clusters and targets, and random placements that the planner's
independent checker looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from solver import Certificate, Node, PlacedOnNode, Plan, PodClass, PodSpec, Problem, RunningPods, Status
from solver.model import Resources
from solver.model.eligibility import why_not_eligible
from solver.slack.amount import needed, parts, wanted
from solver.slack.model import Base, Copies, NodeShape, Placement, PodCount, Role, SlackShape, SlackTarget, Version
from solver.slack.placement import settle
from solver.verify.nodes import faults_on_nodes
from solver.verify.places import CheckedPlaces
from solver.verify.terms import faults_between_pods
from tests.support.examples import examples
from tests.support.solver.problems import GPU, TAINT, TOLERATION
from tests.support.solver.strategies import constrained_specs

MODEST = examples(60)
ROUNDED = Fraction(102, 100)
"""What rounding up adds at most."""
ROLES_BY_SIZE = (Role.BIGGEST, Role.SHARE)


@dataclass(frozen=True)
class SlackCase:
    target: SlackTarget
    nodes: tuple[NodeShape, ...]
    pods: tuple[PodCount, ...]


@st.composite
def node_shapes(draw: st.DrawFn) -> NodeShape:
    allocatable = {"cpu": draw(st.integers(1, 16)) * 500, "memory": draw(st.integers(1, 64)) * 2**20, "pods": 110}
    gpus = draw(st.sampled_from([0, 0, 1, 4, 8]))
    if gpus:
        allocatable[GPU] = gpus
    room = {**allocatable, "cpu": allocatable["cpu"] - draw(st.sampled_from([0, 0, 100, 499]))}
    taints = (TAINT,) if draw(st.integers(0, 3)) == 0 else ()
    return NodeShape(allocatable, draw(st.integers(0, 9)), {"size": str(allocatable["cpu"])}, taints, room)


@st.composite
def pod_specs(draw: st.DrawFn, *, gpus: bool) -> PodSpec:
    requests = {"cpu": draw(st.integers(1, 9000)), "memory": draw(st.integers(1, 64 * 2**20))}
    if gpus and draw(st.integers(0, 2)) == 0:
        requests[GPU] = draw(st.integers(1, 8))
    return PodSpec(tuple(sorted(requests.items())), tolerations=(TOLERATION,) if draw(st.booleans()) else ())


@st.composite
def cases(draw: st.DrawFn) -> SlackCase:
    nodes = tuple(draw(st.lists(node_shapes(), min_size=1, max_size=4)))
    specs = pod_specs(gpus=any(GPU in shape.allocatable for shape in nodes))
    pods = tuple(PodCount(each, draw(st.integers(1, 50))) for each in draw(st.lists(specs, min_size=1, max_size=5)))
    copies = st.lists(specs, max_size=2)
    target = SlackTarget(
        "t",
        draw(st.sampled_from([0.01, 0.1, 0.25, 1.0])),
        draw(st.sampled_from(list(Version))),
        draw(st.sampled_from(list(Base))),
        draw(st.integers(1, 7)),
        tuple(Copies(f"f{n}", each, draw(st.integers(0, 3))) for n, each in enumerate(draw(copies))),
        tuple(Copies(f"m{n}", each, draw(st.integers(0, 3))) for n, each in enumerate(draw(copies))),
    )
    return SlackCase(target, nodes, pods)


def held(shapes: Sequence[SlackShape]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in shapes:
        for name, amount in each.spec.requests:
            total[name] += amount * each.count
    return total


def base_of(case: SlackCase) -> Counter[str]:
    """What the rate is a rate of, for resources that pods ask for."""
    total: Counter[str] = Counter()
    asked = {name for each in case.pods for name, _ in each.spec.requests}
    if case.target.base is Base.REQUESTED:
        for pod in case.pods:
            total.update({name: amount * pod.count for name, amount in pod.spec.requests})
    else:
        for shape in case.nodes:
            total.update({name: n * shape.count for name, n in shape.allocatable.items() if name in asked})
    return total


def room(shape: NodeShape) -> Resources:
    return shape.room or shape.allocatable


@given(cases())
@MODEST
def test_at_least_the_rate_is_held_of_every_resource(case: SlackCase) -> None:
    found = held(wanted(case.target, case.nodes, case.pods).shapes)
    rate = Fraction(repr(case.target.rate))
    assert all(found[name] >= rate * amount for name, amount in base_of(case).items())


@given(cases())
@MODEST
def test_every_placeholder_fits_a_node_and_is_no_bigger_than_the_biggest_pod(case: SlackCase) -> None:
    most = {name: max(dict(pod.spec.requests).get(name, 0) for pod in case.pods) for name in ("cpu", "memory", GPU)}
    for each in wanted(case.target, case.nodes, case.pods).shapes:
        assert each.count > 0
        assert all(amount > 0 for _, amount in each.spec.requests)
        homes = [n for n in case.nodes if why_not_eligible(each.spec, n.labels, n.taints) is None]
        assert any(all(room(n).get(name, 0) >= amount for name, amount in each.spec.requests) for n in homes)
        if each.role in ROLES_BY_SIZE:
            assert all(amount <= most[name] for name, amount in each.spec.requests)


@given(cases())
@MODEST
def test_a_higher_rate_holds_no_less(case: SlackCase) -> None:
    rates = (0.01, 0.1, 0.25, 1.0, 2.0)
    totals = [held(wanted(replace(case.target, rate=rate), case.nodes, case.pods).shapes) for rate in rates]
    for lower, higher in pairwise(totals):
        assert all(amount <= higher[name] * ROUNDED for name, amount in lower.items())


@given(cases())
@MODEST
def test_order_does_not_matter(case: SlackCase) -> None:
    found = wanted(case.target, case.nodes, case.pods)
    assert wanted(case.target, case.nodes[::-1], case.pods[::-1]) == found
    split = [replace(pod, count=1) for pod in case.pods] + [replace(pod, count=pod.count - 1) for pod in case.pods]
    assert wanted(case.target, case.nodes, split) == found


@given(cases(), cases())
@MODEST
def test_sizes_of_before_hold_what_is_wanted_too(case: SlackCase, other: SlackCase) -> None:
    """Whatever was before; and with the same cluster nothing changes."""
    first = wanted(case.target, case.nodes, case.pods)
    assert wanted(case.target, case.nodes, case.pods, first.shapes) == first
    strange = wanted(case.target, other.nodes, other.pods).shapes
    found = held(wanted(case.target, case.nodes, case.pods, strange).shapes)
    rate = Fraction(repr(case.target.rate))
    assert all(found[name] >= rate * amount for name, amount in base_of(case).items())


@given(
    st.fixed_dictionaries({"cpu": st.integers(0, 5000), GPU: st.integers(0, 40)}),
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9)), min_size=1, max_size=3),
)
@MODEST
def test_parts_are_even_and_hold_the_total(total: dict[str, int], count: int, sizes: list[tuple[int, int]]) -> None:
    rooms = [{"cpu": cpu, GPU: gpus, "pods": 1} for cpu, gpus in sizes]
    cut = parts(total, count, rooms)
    if not cut:
        assert not any(total.values()) or all(
            any(amount and not each[name] for name, amount in total.items()) for each in rooms
        )
        return
    for name, amount in total.items():
        shares = [size.get(name, 0) for size, _ in cut]
        assert amount <= sum(size.get(name, 0) * number for size, number in cut) <= amount * ROUNDED
        assert max(shares) - min(shares) <= 1
    assert any(all(size.get(name, 0) <= each[name] for size, _ in cut for name in total) for each in rooms)
    assert len(cut) <= 3


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), max_size=6),
)
@MODEST
def test_r5_what_is_needed_is_what_some_pod_needs(rooms: list[tuple[int, int]], pods: list[tuple[int, int]]) -> None:
    given_rooms = [{"cpu": cpu, "memory": memory, "pods": 9} for cpu, memory in rooms]
    kept = needed(given_rooms, [{"cpu": cpu, "memory": memory} for cpu, memory in pods])

    def fit(pod: tuple[int, int], where: tuple[int, int]) -> bool:
        return pod[0] <= where[0] and pod[1] <= where[1]

    for cpu, memory in rooms:
        smaller = [r for r in rooms if fit(r, (cpu, memory)) and r != (cpu, memory)]
        only_here = any(fit(pod, (cpu, memory)) and not any(fit(pod, r) for r in smaller) for pod in pods)
        assert ({"cpu": cpu, "memory": memory, "pods": 9} in kept) == (not smaller or only_here)


@st.composite
def boards(draw: st.DrawFn) -> tuple[list[SlackShape], list[Node], Placement]:
    """Shapes that look at nodes, ports and pods; of terms only those that keep apart, whose order does not matter."""
    shapes = []
    for number in range(draw(st.integers(1, 4))):
        plain = replace(
            draw(constrained_specs()), pod_affinity=(), topology_spread=(), preferred_nodes=(), preferred_pods=()
        )
        shapes.append(SlackShape(f"s{number}", Role.MIRROR, plain, draw(st.integers(0, 6)), ""))
    nodes = []
    for number in range(draw(st.integers(0, 5))):
        running = [
            replace(each, pod_affinity=(), topology_spread=())
            for each in draw(st.lists(constrained_specs(), max_size=2))
        ]
        nodes.append(
            Node(
                f"n{number}",
                {"cpu": draw(st.integers(-1, 6)) * 1000, "pods": draw(st.integers(0, 6))},
                draw(st.sampled_from([{"zone": "a"}, {"zone": "a"}, {"zone": "b"}, {}])),
                (TAINT,) if draw(st.integers(0, 4)) == 0 else (),
                tuple(RunningPods(each, draw(st.integers(1, 2))) for each in running),
                {"cpu": 6000, "pods": 8},
            )
        )
    names = st.sampled_from([f"n{number}" for number in range(6)])
    before = {
        f"s{number}": draw(st.dictionaries(names, st.integers(1, 4), max_size=4))
        for number in range(draw(st.integers(0, 5)))
    }
    return shapes, nodes, before


def faults(shapes: Sequence[SlackShape], nodes: Sequence[Node], where: Placement) -> list[str]:
    """What the planner's checker has against the placement."""
    classes = tuple(PodClass(n, s.spec, s.count, s.name, placeholder=True) for n, s in enumerate(shapes))
    onto: dict[str, dict[int, int]] = {}
    for index, each in enumerate(shapes):
        for name, count in where.get(each.name, {}).items():
            onto.setdefault(name, {})[index] = count
    existing = tuple(PlacedOnNode(*each) for each in onto.items())
    plan = Plan(classes, (), (), existing, (), Certificate(Status.FEASIBLE, 0.0, 0.0, (), 0.0), 0.0)
    problem = Problem(tuple(each.pod_set(each.count) for each in shapes), nodes=tuple(nodes))
    places = CheckedPlaces(problem, plan)
    return [*faults_on_nodes(problem, places), *faults_between_pods(problem, plan, places)]


@given(boards())
@MODEST
def test_the_checker_accepts_every_placement(board: tuple[list[SlackShape], list[Node], Placement]) -> None:
    shapes, nodes, before = board
    settled = settle(shapes, nodes, before)
    assert faults(shapes, nodes, settled.held) == []


@given(boards())
@MODEST
def test_everything_is_accounted_for(board: tuple[list[SlackShape], list[Node], Placement]) -> None:
    shapes, nodes, before = board
    settled = settle(shapes, nodes, before)
    for each in shapes:
        assert sum(settled.held.get(each.name, {}).values()) + settled.left.get(each.name, 0) == each.count
    for sign in (settled.kept, settled.placed, settled.pushed_out, settled.removed, settled.held):
        assert all(there and all(count > 0 for count in there.values()) for there in sign.values())
    ways = [(name, node) for part in (before, settled.held) for name, there in part.items() for node in there]
    for name, node in ways:
        was, kept, placed, pushed_out, removed, now = (
            part.get(name, {}).get(node, 0)
            for part in (before, settled.kept, settled.placed, settled.pushed_out, settled.removed, settled.held)
        )
        assert was == kept + pushed_out + removed
        assert now == kept + placed


@given(boards())
@MODEST
def test_a_second_loop_changes_nothing(board: tuple[list[SlackShape], list[Node], Placement]) -> None:
    shapes, nodes, before = board
    first = settle(shapes, nodes, before)
    second = settle(shapes, nodes[::-1], first.held)
    assert (second.held, second.left) == (first.held, first.left)
    assert not second.placed
    assert not second.pushed_out
    assert not second.removed


@given(boards())
@MODEST
def test_what_is_left_fits_nowhere(board: tuple[list[SlackShape], list[Node], Placement]) -> None:
    """One more of a shape that has some left breaks a rule on every node."""
    shapes, nodes, before = board
    settled = settle(shapes, nodes, before)
    for each in shapes:
        if not settled.left.get(each.name):
            continue
        for node in nodes:
            more = {**settled.held, each.name: dict(settled.held.get(each.name, {}))}
            more[each.name][node.name] = more[each.name].get(node.name, 0) + 1  # type: ignore[index]
            assert faults(shapes, nodes, more) != []
