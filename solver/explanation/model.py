"""An explanation as plain values, and what a kind of constraint provides to be explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from solver.model import (
    DeviceRequest,
    HostPort,
    NodeGroup,
    NodeGroupIncrease,
    Plan,
    PodAffinityTerm,
    PodClass,
    PodSpec,
    PossibleGroups,
    Problem,
    Taint,
    TopologySpread,
)

Part = Taint | HostPort | PodAffinityTerm | TopologySpread | DeviceRequest | PossibleGroups | None


@dataclass(frozen=True, slots=True)
class ConstraintChange:
    """One parameter of a problem and its new value. Removing a constraint is a change too, so that what stands in the
    way and what would help are described in the same terms.

    `before` and `after` are amounts in the parameter's own unit (nodes, millicores, bytes, pieces, skew); both are None
    where a condition is dropped or a taint tolerated.
    """

    kind: str
    """The name of an entry of `solver.explanation.kinds.KINDS`."""
    subject: str
    """The node group, the limit, or the example pod of the class that is changed."""
    key: str = ""
    """Which of the subject's: the resource, the label, the taint's or the topology key, the port."""
    before: int | None = None
    after: int | None = None
    pods: PodClass | None = field(default=None, hash=False)
    """The class whose pods are changed; None where a node group or a limit is."""
    part: Part = None
    """The taint that is tolerated, the term that is dropped or loosened, or the node groups that come."""

    @property
    def whole(self) -> int:
        """`after`, of a change of an amount."""
        assert self.after is not None, self
        return self.after

    def lessened(self) -> ConstraintChange | None:
        """Return the change by one unit less; None where that is no change at all."""
        if self.before is None or self.after is None or abs(self.after - self.before) == 1:
            return None
        return replace(self, after=self.after - 1 if self.after > self.before else self.after + 1)


@dataclass(frozen=True, slots=True)
class ConstraintKind:
    """How constraints of one kind are found, removed, changed a little, and described."""

    name: str
    find: Callable[[Problem, Sequence[PodClass]], Iterable[ConstraintChange]]
    """Every constraint of the kind that might keep the classes out, as the change that removes it."""
    reason: Callable[[ConstraintChange], str]
    """The constraint as it stands, in words."""
    advice: Callable[[ConstraintChange], str] | None
    """The change in the imperative; None where nobody can make it, so that it is in cores and in no way."""
    edit_pods: Callable[[PodSpec, ConstraintChange], PodSpec] | None = None
    edit_group: Callable[[NodeGroup, ConstraintChange], NodeGroup] | None = None
    edit_problem: Callable[[Problem, ConstraintChange], Problem] | None = None
    milder: Callable[[ConstraintChange], ConstraintChange | None] = lambda _: None
    """A change of an amount that may do where `find` drops the constraint."""
    reached: Callable[[ConstraintChange, Problem, Plan], int | None] = lambda *_: None
    """The amount that a plan makes do with."""
    offered: Callable[[ConstraintChange], ConstraintChange | None] = lambda change: change
    """The most of a change that people are offered, where `find` takes away more; None where none is."""
    steps: Callable[[ConstraintChange, Problem], tuple[int, int]] = lambda *_: (1, 1)
    """The distances from `before` at which anything changes: the first, and from one to the next."""


@dataclass(frozen=True, slots=True)
class KeptPods:
    """The constraint of a core that stands for the pods that the plan serves and the unserved ones do not outrank."""


KEPT_PODS = KeptPods()
Constraint = ConstraintChange | KeptPods


@dataclass(frozen=True, slots=True)
class Way:
    """Changes after which the unserved class or gang is served whole, and everything that it does not outrank still
    is."""

    changes: tuple[ConstraintChange, ...]
    proven: bool
    """Whether each change is proven to be needed to its last unit."""

    def lessened(self) -> Iterator[tuple[ConstraintChange, ...]]:
        """Yield what is not enough: the changes with one of them by one unit less, or left out where it has no
        units."""
        for position, change in enumerate(self.changes):
            less = change.lessened()
            yield (*self.changes[:position], *([less] if less else []), *self.changes[position + 1 :])


@dataclass(frozen=True, slots=True)
class WhyUnserved:
    """Why a class or a gang is not served, or not whole, and what would help."""

    name: str
    """The gang, or the example pod of the class."""
    pod_classes: tuple[int, ...]
    """Indices of `Plan.pod_classes`."""
    gang: bool
    pods: int
    unserved: int
    fit: int
    """The most pods that were found to fit beside what is served; of a gang, as if it need not be whole."""
    core: tuple[Constraint, ...]
    """Constraints that together keep the pods out: without any one of them, the others do not."""
    proven: bool
    """Whether it is proven that the core keeps the pods out, and that it needs all of its constraints to."""
    ways: tuple[Way, ...]
    """Alternatives, each of them enough."""
    servable: bool
    """Whether it could be served without any change: the plan was made in too little time."""
    in_place: bool
    """Whether served pods were assumed to stay where the plan has them, as in large plans."""


NOT_YET = "not known yet"


@dataclass(frozen=True, slots=True)
class WhyWaiting:
    """Pods of one class that a plan does not serve."""

    example: str
    count: int
    reasons: tuple[str, ...]
    """Each cause in a sentence, the most telling first."""
    ways: tuple[str, ...] = (NOT_YET,)
    """What would serve them, each sufficient, and each tried by planning; where there is none, why. Never empty."""
    gang: str | None = None

    def __str__(self) -> str:
        return sentence("; ".join(self.reasons), self.ways)


def sentence(why: str, ways: Iterable[str]) -> str:
    """Return why something waits, with what would serve it."""
    return f"{why}. What would serve it: {'; or '.join(ways)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """What another plan of the same problem has more than the one explained; negative for less."""

    unserved: int
    """Real pods."""
    placeholders: int
    tiers: tuple[tuple[int, float], ...]
    """(weight, $/h), lowest weight first: the order in which they are minimised."""
    cost_usd_per_hour: float
    increments: tuple[NodeGroupIncrease, ...]
    """Nodes more or less, per group."""
    proven: bool
    """Whether both plans are proven best; otherwise the difference is one of plans found."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The group of a tier that would serve the most of the same pods at the lowest price, and was not chosen."""

    node_group: str
    weight: int
    price_usd_per_hour: float
    """Of one node."""
    forced: Difference | None
    """The best plan with a node of it; None where limits allow none."""


@dataclass(frozen=True, slots=True)
class WhyGroup:
    """Why nodes of a group are opened."""

    node_group: str
    nodes: int
    weight: int
    cost_usd_per_hour: float
    without: Difference
    """The best plan with no new node of it."""
    others: tuple[Alternative, ...]
    """One per tier, the highest weight first."""


@dataclass(frozen=True, slots=True)
class WhyLimited:
    """What maximum sizes and limits that a plan has used up cost."""

    changes: tuple[ConstraintChange, ...]
    """Those that are removed, together."""
    without: Difference
    """The best plan without them."""
    lower_bound_usd_per_hour: float | None
    """No plan without them that serves as much as that one costs less; None where nothing is proven."""


@dataclass(frozen=True, slots=True)
class Explanation:
    unserved: tuple[WhyUnserved, ...]
    """The most important classes and gangs first."""
    claims_left_out: int
    """How many unserved classes and gangs are not explained: there are too many, or the budget was used up."""
    chosen: tuple[WhyGroup, ...]
    """The most expensive increments first."""
    chosen_left_out: int
    price_of_priority_usd_per_hour: float
    """The plan's: its cost minus the cost of serving the same pods with all weights equal."""
    limited: tuple[WhyLimited, ...] = ()
    """What the maximum sizes and limits that the plan has used up cost: of several first all together, then each that
    costs something alone. Empty where none does, or where there was no time to find out."""
