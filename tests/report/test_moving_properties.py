"""The report and a server's consolidation ask the same of the same cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given

from cagrpc.api.core.movability import MovingRules, StaysBecause
from cagrpc.cluster.documents import DocumentReader
from cagrpc.config.reading import price_list
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.consolidation.question import question as question_of_server
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.offline.inputs import ReadInputs
from cagrpc.report.consolidation import SETTINGS, moving_question
from cagrpc.report.problem import ReadCluster, question
from cagrpc.report.standing import StandingShape
from solver.consolidation.model import ConsolidationProblem
from tests.support import drawn_clusters
from tests.support.controllers.cluster_objects import NOW
from tests.support.drawn_clusters import clusters, printed, watched
from tests.support.examples import examples

_PRICES = price_list(embedded_catalogue(), None)


def fleet(found: Sequence[StandingShape], out: Mapping[str, object]) -> FleetSnapshot:
    """Return the fleet of a server whose node groups are these shapes, of which all nodes that are compared stand."""
    groups = {}
    group_of: dict[str, str] = {}
    for shape in found:
        names = [each.name for each in shape.nodes if each.name not in out]
        groups[shape.group.id] = GroupState(replace(shape.group, target_size=len(names)), len(names))
        group_of |= {f"id-{name}": shape.group.id for name in names}
    return FleetSnapshot(0, groups, (), group_of)


def comparable(problem: ConsolidationProblem, out: Mapping[str, object]) -> Any:
    """Return the problem with what is in no order as counts; of nodes that are out of the comparison only their
    pods."""
    nodes = {}
    for each in problem.nodes:
        bare = replace(each.node, running=())
        counts = Counter({of.spec: of.count for of in each.node.running})
        said = () if each.node.name in out else (each.kept, each.takes_pods, each.must_go, each.node_group)
        nodes[each.node.name] = bare, counts, frozenset(each.pods), said
    return nodes, replace(problem, nodes=())


@examples(300)
@given(clusters())
def test_the_report_asks_what_a_server_asks(cluster: drawn_clusters.Objects) -> None:
    reader = DocumentReader(NOW, moving=MovingRules())
    reader.add(printed(cluster))
    of = ReadCluster.of(ReadInputs(reader, reader.read(), _PRICES))
    kept = of.first_kept()
    asked = moving_question(of, question(of, kept))

    state = watched(cluster, moving=MovingRules()).model.state(with_bound=True)
    theirs = question_of_server(Snapshot(fleet(of.shapes, kept), state), SETTINGS, NOW).problem

    assert {name: here.reschedulable for name, here in of.read.found.state.bound.items()} == {
        name: here.reschedulable for name, here in state.bound.items()
    }
    assert comparable(asked.problem, kept) == comparable(theirs, kept)
    stays = {each.node.name for each in theirs.nodes if each.kept} - kept.keys()
    said = {name for name, of in asked.obstacles.items() if {because for because, _ in of} != {StaysBecause.GANG}}
    assert said == stays
