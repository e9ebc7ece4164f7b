"""Which pods would run on another architecture than now without having said that they may: a plan reads labels and
taints, and never the images, which may be built for one architecture alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cagrpc.api.core.nodes import ARCH
from cagrpc.report.model import ArchitectureChange
from cagrpc.report.problem import ReadCluster, RepackingQuestion
from solver import Plan
from solver.consolidation.model import ConsolidationPlan, ConsolidationProblem
from solver.model import PodSpec


def changed_by_plan(cluster: ReadCluster, asked: RepackingQuestion, plan: Plan) -> tuple[ArchitectureChange, ...]:
    """Return the changes of a plan that places the pods of the question anew."""
    here = {each.name: each.seen.node.labels.get(ARCH, "") for each in cluster.nodes}
    there = {each.id: each.labels.get(ARCH, "") for each in asked.problem.node_groups}
    if len({*here.values(), *(there[each.node_group] for each in plan.increments)}) == 1:
        return ()
    before, found = Counter[tuple[PodSpec, str]](), Counter[str]()
    for pods in asked.problem.pod_sets:
        nodes = (asked.node_of.get(pod.key, "") for pod in asked.pods.get(pods.name, ()))
        before.update((pods.spec, here.get(each, "")) for each in nodes)
    after = Counter[tuple[PodSpec, str]]()
    for opened in plan.nodes:
        for index, count in opened.pods.items():
            after[plan.pod_classes[index].spec, there[opened.node_group]] += opened.count * count
    for (spec, architecture), count in after.items():
        if not _names_architectures(spec):
            found[architecture] += max(0, count - before[spec, architecture])
    return _changes(found)


def changed_by_steps(problem: ConsolidationProblem, plan: ConsolidationPlan) -> tuple[ArchitectureChange, ...]:
    """Return the changes of all steps: pods that go where none of a step's nodes is of that architecture."""
    here = {each.node.name: each.node.labels.get(ARCH, "") for each in problem.nodes}
    there = {each.id: each.labels.get(ARCH, "") for each in problem.node_groups}
    found = Counter[str]()
    for step in plan.steps:
        known = {here[each] for each in step.nodes}
        placed = [(there[each.node_group], each.count, each.pods) for each in step.plan.nodes]
        placed += ((_of_node(each.node, here, there), 1, each.pods) for each in step.plan.existing)
        for architecture, nodes, pods in placed:
            classes = ((step.plan.pod_classes[index], count) for index, count in pods.items())
            found[architecture] += sum(
                nodes * count
                for each, count in classes
                if architecture not in known and not each.placeholder and not _names_architectures(each.spec)
            )
    return _changes(found)


def _of_node(name: str, here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return the architecture of a node that stands, or that an earlier step has opened (`<node group>/step-...`)."""
    return here.get(name) or there.get(name.rpartition("/step-")[0], "")


def _changes(found: Counter[str]) -> tuple[ArchitectureChange, ...]:
    return tuple(ArchitectureChange(each, pods) for each, pods in sorted(found.items()) if each and pods)


def _names_architectures(spec: PodSpec) -> bool:
    """Return whether a pod says itself on which architectures it runs."""
    terms = () if spec.affinity is None else spec.affinity
    by_affinity = bool(terms) and all(any(each.key == ARCH for each in term.match_expressions) for term in terms)
    return by_affinity or any(key == ARCH for key, _ in spec.node_selector)
