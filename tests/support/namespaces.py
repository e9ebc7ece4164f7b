"""Which namespaces meet conditions, plainly: what the readers of pods are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cagrpc.api.core.selectors import NAMESPACE_NAME, Conditions
from solver.model import Labels, Operator
from solver.model.eligibility import matches_requirement


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The known namespaces. `labels` has those whose labels are all known; `names` has all namespaces with pods, or is
    None where that is unknown. The label `kubernetes.io/metadata.name` is known for each."""

    labels: Mapping[str, Labels] = field(default_factory=dict)
    names: frozenset[str] | None = None

    def matching(self, conditions: Conditions) -> tuple[tuple[str, ...], bool]:
        of_name = [condition for condition in conditions if condition.key == NAMESPACE_NAME]
        listed = {name for each in of_name if each.operator is Operator.IN for name in each.values}
        complete = self.names is not None or bool(listed)
        found = set()
        for name in {*self.labels, *(self.names or ()), *listed}:
            by_name = {NAMESPACE_NAME: name}
            if not all(matches_requirement(condition, by_name) for condition in of_name):
                continue
            if len(of_name) < len(conditions) and name not in self.labels:
                complete = False
            elif all(matches_requirement(each, {**self.labels.get(name, {}), **by_name}) for each in conditions):
                found.add(name)
        return tuple(sorted(found)), complete
