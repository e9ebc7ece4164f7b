"""From what the command line names to the report: read, plan, and say it in the report's values. How the numbers come
about is in `ladder`, how they look in `page` and `as_json`."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.api.core.movability import MovingRules
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.cluster.documents import DocumentReader
from cagrpc.errors import InvalidConfiguration, InvalidInput
from cagrpc.fleet.provisioners import Widen
from cagrpc.offline.inputs import Inputs, read_inputs
from cagrpc.report.architectures import changed_by_plan
from cagrpc.report.consolidation import consolidated, moving_question
from cagrpc.report.ladder import CONSOLIDATION, HAVING, Ladder, climb
from cagrpc.report.model import (
    BestPlan,
    Bound,
    Cause,
    ClusterName,
    Consolidation,
    GroupDelta,
    KeptBecause,
    KeptNodes,
    NameKind,
    PodsWithoutPlace,
    Report,
    Saving,
    Share,
    Unpriced,
    workload,
)
from cagrpc.report.packing import planned_packing, standing_packing
from cagrpc.report.problem import ReadCluster, name_of
from cagrpc.report.standing import ReportedNode, StandingShape
from solver import Budget, Plan, PodSpec
from solver.explanation.choices import reached
from solver.explanation.explain import explain_unserved
from solver.explanation.waiting import kind_words, why_waiting, with_ways
from solver.model.money import DUST_USD_PER_HOUR

_MOST_NAMED = 10
_MOST_WORKLOADS = 5
_EXPLAINED = 0.2
"""Of the budget and beside its other shares, for what a plan does not serve."""


def make_report(inputs: Inputs, budget: Budget) -> Report:
    """Return the report. Raises InvalidInput with what is wrong with the inputs, Unavailable where the cluster cannot
    be read."""
    started = time.perf_counter()
    now_seconds = time.time()  # noqa: TID251 - pods' ages
    # What --nodes names for a plan is the whole of a cluster here.
    inputs = replace(inputs, pods=(*inputs.nodes, *inputs.pods), nodes=())
    source = _source(inputs)
    reader = DocumentReader(now_seconds, inputs.gang_label, inputs.schedulers, MovingRules())
    warnings: tuple[str, ...] = ()
    if inputs.recording:
        from cagrpc.report.recorded import read_recorded  # noqa: PLC0415 - it brings gRPC

        warnings = read_recorded(inputs.recording, reader)
    problems: Problems = []
    read = read_inputs(inputs, reader, problems)
    if problems:
        raise InvalidConfiguration(problems)
    cluster = ReadCluster.of(read, packed=not inputs.recording)
    _check(inputs, cluster.nodes)
    ladder = climb(cluster, budget)
    consolidation = None
    if cluster.packed and reader.bound and ladder.present_usd_per_hour:
        moving = moving_question(cluster, ladder.question)
        consolidation = consolidated(moving, cluster.nodes, budget.part(CONSOLIDATION))
    without_place = tuple(_without_place(ladder, read.widen, budget.part(_EXPLAINED)))
    report = _composed(source, cluster, ladder, consolidation, time.perf_counter() - started)
    return replace(
        report,
        warnings=(*warnings, *report.warnings),
        without_place=without_place,
        interrupted=budget.interrupted,
        architectures=changed_by_plan(cluster, ladder.question, ladder.plan) if cluster.packed else (),
    )


def _source(inputs: Inputs) -> str:
    given = {"files": inputs.pods, "recording": inputs.recording, "cluster": inputs.kubeconfig}
    found = [name for name, each in given.items() if each]
    if len(found) != 1:
        raise InvalidInput(
            "report: give one of --pods and --nodes (files), --recording, and --kubeconfig (a running cluster)"
        )
    return found[0]


def _check(inputs: Inputs, nodes: tuple[ReportedNode, ...]) -> None:
    """Refuse inputs of which nothing could be reported."""
    if not nodes and not inputs.provisioners:
        raise InvalidInput("report: there are no nodes; with --provisioners the pods are planned on new ones")
    if nodes and all(each.price_usd_per_hour is None for each in nodes):
        kinds = sorted({each.place.instance_type or "(no instance type)" for each in nodes})
        shown = ", ".join(kinds[:_MOST_NAMED]) + (" ..." if len(kinds) > _MOST_NAMED else "")
        raise InvalidInput(
            f"report: no node has a price: {shown}. Name a table with the columns instance_type and usd_per_hour (and"
            " zone, capacity_type) with --prices"
        )


def _composed(
    source: str,
    cluster: ReadCluster,
    ladder: Ladder,
    consolidation: Consolidation | None,
    elapsed_seconds: float,
) -> Report:
    """Return the report, with the names of the cluster."""
    read, nodes, shapes = cluster.read, cluster.nodes, cluster.shapes
    question, plan = ladder.question, ladder.plan
    priced = [each for each in nodes if each.price_usd_per_hour is not None]
    compared = [each for each in nodes if each.name not in question.kept]
    group_of = {node.name: shape.group for shape in shapes for node in shape.nodes}
    certificate = plan.certificate
    planned = BestPlan(
        certificate.status.value,
        certificate.cost_usd_per_hour,
        certificate.least_usd_per_hour,
        certificate.gap,
        sum(each.count for each in plan.unplaced),
        certificate.unserved_unproven,
        tuple(GroupDelta(ClusterName(NameKind.GROUP, each.node_group), each.delta) for each in plan.increments),
    )
    return Report(
        source=source,
        anonymised=False,
        elapsed_seconds=elapsed_seconds,
        pods=sum(each.count for each in question.problem.pod_sets),
        waiting=read.reader.waiting if cluster.packed and nodes else 0,
        nodes=len(nodes),
        standing_usd_per_hour=_dollars(priced) if nodes else None,
        present_usd_per_hour=ladder.present_usd_per_hour,
        planned=planned,
        least_usd_per_hour=ladder.least_usd_per_hour,
        by_group=_shares(priced, NameKind.GROUP, lambda node: group_of[node.name].id),
        by_pool=_shares(priced, NameKind.POOL, lambda node: node.pool),
        by_zone=_shares(priced, NameKind.ZONE, lambda node: node.place.zone),
        by_capacity_type=_shares(priced, NameKind.CAPACITY_TYPE, lambda node: node.place.capacity_type),
        unpriced=_unpriced(nodes),
        kept=tuple(_kept(nodes, ladder)),
        steps=ladder.steps,
        consolidation=consolidation,
        before=standing_packing(compared, group_of) if compared and cluster.packed else None,
        after=planned_packing(question.problem, plan),
        changes=tuple(sorted(_changes(ladder, shapes), key=lambda each: -each.usd_per_hour)),
        not_read=tuple(read.unread),
        warnings=(*(read.expanded.warnings if read.expanded else ()), *read.left_out, *question.warnings),
    )


def _without_place(ladder: Ladder, widen: Widen, budget: Budget) -> Iterator[PodsWithoutPlace]:
    """Yield the pods that a plan does not serve, with why, and what would serve them."""
    known: set[str] = set()
    for asked, plan in ladder.rounds:
        waiting = why_waiting(plan)
        if not waiting:
            continue
        explained = explain_unserved(widen(asked.problem, plan), plan, budget)
        causes = {index: each.core for each in explained for index in each.pod_classes}
        for index, each in with_ways(waiting, explained).items():
            if each.example not in known:
                known.add(each.example)
                yield PodsWithoutPlace(
                    workload(asked.workload_of(each.example), each.count),
                    tuple(dict.fromkeys(kind_words(cause) for cause in causes.get(index, ()))),
                    tuple(ClusterName(NameKind.REASON, text) for text in each.reasons),
                    tuple(ClusterName(NameKind.WAY, text) for text in each.ways),
                )


def _dollars(nodes: Iterable[ReportedNode]) -> float:
    return sum(each.price_usd_per_hour or 0.0 for each in nodes)


def _shares(nodes: Sequence[ReportedNode], kind: NameKind, key: Callable[[ReportedNode], str]) -> tuple[Share, ...]:
    found: defaultdict[str, list[ReportedNode]] = defaultdict(list)
    for node in nodes:
        found[key(node)].append(node)
    shares = (Share(ClusterName(kind, name), len(mine), _dollars(mine)) for name, mine in found.items())
    return tuple(sorted(shares, key=lambda each: (-each.usd_per_hour, each.name)))


def _unpriced(nodes: Iterable[ReportedNode]) -> tuple[Unpriced, ...]:
    kinds = Counter(each.place for each in nodes if each.price_usd_per_hour is None)
    return tuple(
        Unpriced(
            ClusterName(NameKind.INSTANCE_TYPE, kind),
            ClusterName(NameKind.ZONE, zone),
            ClusterName(NameKind.CAPACITY_TYPE, capacity),
            count,
        )
        for (kind, zone, capacity), count in sorted(kinds.items())
    )


def _kept(nodes: Sequence[ReportedNode], ladder: Ladder) -> Iterator[KeptNodes]:
    for reason in KeptBecause:
        mine = [each for each in nodes if ladder.question.kept.get(each.name) is reason]
        if mine:
            yield KeptNodes(reason, len(mine), sum(each.movable for each in mine), _dollars(mine))


def _changes(ladder: Ladder, shapes: Sequence[StandingShape]) -> Iterator[Saving]:
    for step in ladder.steps:
        if step.usd_per_hour >= DUST_USD_PER_HOUR and step.cause is not Cause.UNPROVEN:
            having = HAVING.get(step.cause)
            change = Saving(step.cause, step.usd_per_hour)
            if having is not None:
                yield _of_workloads(change, ladder, having)
            elif step.cause in (Cause.WEIGHTS, Cause.LIMITS):
                yield _of_groups(change, ladder)
            else:
                yield _of_nodes(change, ladder, shapes)


def _of_nodes(change: Saving, ladder: Ladder, shapes: Sequence[StandingShape]) -> Saving:
    """Return a change of nodes: which go, and which come instead."""
    if change.cause is Cause.EMPTY:
        return replace(change, nodes=len(ladder.empty), deltas=_removed(ladder.empty, shapes))
    present = _occupied(shapes, ladder)
    packed = present
    if ladder.same_nodes:
        packed = _opened(ladder.same_nodes) + _counts(shapes, {each.name for each in ladder.stuck})
    if change.cause is Cause.STRANDED:
        fewer = sum(present.values()) - sum(packed.values())
        return replace(change, nodes=fewer, deltas=_difference(present, packed))
    return replace(change, deltas=_difference(packed, _opened(ladder.plan)))


def _of_groups(change: Saving, ladder: Ladder) -> Saving:
    """Return a change of weights or limits."""
    if change.cause is Cause.LIMITS:
        return replace(change, bounds=tuple(_bounds(ladder)))
    pools = {each.provisioner for each in ladder.question.problem.node_groups}
    return replace(change, pools=tuple(ClusterName(NameKind.POOL, each) for each in sorted(pools)))


def _removed(nodes: Iterable[ReportedNode], shapes: Sequence[StandingShape]) -> tuple[GroupDelta, ...]:
    counts = _counts(shapes, {each.name for each in nodes})
    return tuple(GroupDelta(ClusterName(NameKind.GROUP, name), -count) for name, count in counts.items() if count)


def _occupied(shapes: Sequence[StandingShape], ladder: Ladder) -> Counter[str]:
    """Return the nodes of the comparison that are not empty, by shape."""
    out = {*ladder.question.kept, *(each.name for each in ladder.empty)}
    return _counts(shapes, {node.name for each in shapes for node in each.nodes} - out)


def _counts(shapes: Iterable[StandingShape], names: AbstractSet[str]) -> Counter[str]:
    """Return how many of these nodes each shape has."""
    return Counter({each.group.id: sum(node.name in names for node in each.nodes) for each in shapes})


def _opened(plan: Plan) -> Counter[str]:
    return Counter({each.node_group: each.delta for each in plan.increments})


def _difference(before: Counter[str], after: Counter[str]) -> tuple[GroupDelta, ...]:
    found = ((name, after[name] - before[name]) for name in {*before, *after})
    ordered = sorted(found, key=lambda each: (each[1], each[0]))
    return tuple(GroupDelta(ClusterName(NameKind.GROUP, name), count) for name, count in ordered if count)


def _bounds(ladder: Ladder) -> Iterator[Bound]:
    groups = {each.id for each in ladder.question.problem.node_groups}
    for change in reached(ladder.question.problem, ladder.plan):
        kind = NameKind.GROUP if change.subject in groups else NameKind.LIMIT
        resource = ClusterName(NameKind.RESOURCE, change.key if kind is NameKind.LIMIT else "nodes")
        yield Bound(ClusterName(kind, change.subject), resource, change.before)


def _of_workloads(change: Saving, ladder: Ladder, has: Callable[[PodSpec], bool]) -> Saving:
    """Return a change of the rules of workloads, with those of most pods."""
    counts: Counter[str] = Counter()
    for each in ladder.question.problem.pod_sets:
        if has(each.spec):
            pods = ladder.question.pods.get(each.name)
            counts.update(Counter(map(name_of, pods)) if pods else {each.name: each.count})
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    shown = tuple(workload(name, pods) for name, pods in ordered[:_MOST_WORKLOADS])
    return replace(change, workloads=shown, more_workloads=max(0, len(ordered) - _MOST_WORKLOADS))
