"""The section `slack`, and its conversion to the controllers' settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cagrpc.cluster.exclusion import Exclusion
from cagrpc.config.problems import shown
from cagrpc.config.schema.fields import Allocatable, LabelKey, LabelValue, RequirementForm, amounts_asked
from cagrpc.config.schema.times import WindowForm
from cagrpc.controllers.slack.model import MIRRORS, Carrier, SlackSettings, TargetSettings, Window
from cagrpc.errors import did_you_mean
from cagrpc.fleet.provisioners import NODEPOOL_LABEL, PROVISIONER_NAME_LABEL
from cagrpc.forms import Form
from solver.model import NodeGroup, Operator, PodSelector, PodSpec, Requirement, Toleration
from solver.slack.model import Base, Copies, Version

_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Rate = Annotated[float, Field(ge=0, le=10)]
Name = Annotated[str, Field(min_length=1, max_length=40, pattern=_DNS_LABEL)]


class TolerationForm(Form):
    """v1.Toleration."""

    key: LabelKey | None = None
    """Default: all taints, with operator Exists."""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Default: all."""

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(f"value: found {shown(self.value)}, expected none with operator Exists")
        if self.key is None and self.operator != "Exists":
            raise ValueError("key is missing; without one the operator is Exists")
        return self

    def toleration(self) -> Toleration:
        """Return the planner's value."""
        return Toleration(self.key or "", self.operator, self.value, self.effect or "")


class Fixed(Form):
    """Placeholders of one size, whatever pods there are."""

    name: Name
    count: Annotated[int, Field(ge=0, le=100_000)] = 1
    requests: Annotated[Allocatable, Field(min_length=1)]
    """Of one: cpu, memory, any resource, as Kubernetes quantities."""
    tolerations: list[TolerationForm] = Field(default_factory=list)

    def copies(self) -> Copies:
        """Return the solver's value."""
        tolerations = tuple(each.toleration() for each in self.tolerations)
        asked = {name: amount for name, amount in amounts_asked(self.requests).items() if amount}
        return Copies(self.name, PodSpec(tuple(sorted(asked.items())), tolerations=tolerations), self.count)

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if "pods" in self.requests:
            raise ValueError("requests.pods: each placeholder is one pod; set how many with count")
        if not any(amounts_asked(self.requests).values()):
            raise ValueError("requests: ask for nothing; expected an amount above 0")
        return self


class SlackSchedule(WindowForm):
    """A window that opens again and again, for peaks that are known. While it is open, its rate takes the place of the
    target's, and its fixed sizes that of those of the same name; of several open ones the most."""

    rate: Rate | None = None
    fixed: list[Fixed] = Field(default_factory=list)

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if self.rate is None and not self.fixed:
            raise ValueError("changes nothing; expected a rate or fixed sizes")
        refuse_repeated("fixed", (each.name for each in self.fixed))
        return self

    def window(self) -> Window:
        """Return the controller's value."""
        return Window(self.schedule(), self.rate, tuple(each.copies() for each in self.fixed))


class SlackTargetForm(Form, title="SlackTarget"):
    """What is held in reserve: a rate, fixed sizes, or both."""

    name: Name
    rate: Rate = 0.0
    """The least of it, as a fraction: 0.1 is a tenth of `base`. Mirrors and fixed sizes count towards it."""
    fixed: list[Fixed] = Field(default_factory=list)
    version: Literal["1", "2-incomplete", "2"] = "2"
    """`1`: even parts. `2-incomplete`: room for the pods with most of each resource, and even parts. `2`: room for a
    pod with the most of every resource, and even parts."""
    base: Literal["requested", "allocatable"] = "requested"
    """What the rate is of: what pods request together, or what nodes have."""
    granularity: Annotated[int, Field(ge=1, le=100)] = 5
    """Placeholders for each node: the more there are, the smaller they are."""
    provisioner: str | None = None
    """Only its nodes, and the pods that may run there. Default: all nodes."""
    namespace: Annotated[str, Field(max_length=63, pattern=_DNS_LABEL)] | None = None
    """Only pods of this namespace. Default: of all."""
    schedules: list[SlackSchedule] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        rates = [self.rate, *(each.rate for each in self.schedules if each.rate is not None)]
        if not (max(rates) or self.fixed or any(each.fixed for each in self.schedules)):
            raise ValueError("asks for nothing; expected a rate above 0, fixed sizes or schedules")
        if self.base == "allocatable" and self.namespace is not None:
            raise ValueError("base: a namespace has no allocatable capacity; expected requested")
        if self.base == "allocatable" and max(rates) >= 1:
            raise ValueError(
                f"rate: found {max(rates):g}, expected less than 1 with base: allocatable, since nodes that are opened "
                "for the slack count too, and there would be no end of it"
            )
        refuse_repeated("fixed", (each.name for each in self.fixed))
        return self


class LabelSelector(Form):
    """Pods by their labels; all conditions hold together."""

    match_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    match_expressions: list[RequirementForm] = Field(default_factory=list)
    """With the operators In, NotIn, Exists, DoesNotExist."""

    @model_validator(mode="after")
    def _selects_pods(self) -> Self:
        if not self.match_labels and not self.match_expressions:
            raise ValueError("is empty, which would be every pod; expected match_labels or match_expressions")
        for number, each in enumerate(self.match_expressions):
            if each.operator not in (Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST):
                raise ValueError(
                    f"match_expressions[{number}].operator: found {shown(each.operator.value)}, expected one of "
                    '"In", "NotIn", "Exists", "DoesNotExist"'
                )
        return self

    def selector(self) -> PodSelector:
        """Return the planner's value."""
        equal = (Requirement(key, Operator.IN, (value,)) for key, value in sorted(self.match_labels.items()))
        return PodSelector((*equal, *(each.requirement() for each in self.match_expressions)))


class SlackExclude(Form):
    """Pods for whose size no room is reserved (databases, of which no hot standby is wanted), beside those with the
    annotation slack.cagrpc.io/exclude: "true". They count towards what is requested all the same."""

    namespaces: list[Annotated[str, Field(max_length=63, pattern=_DNS_LABEL)]] = Field(default_factory=list)
    selector: LabelSelector | None = None

    def exclusion(self) -> Exclusion:
        """Return the view's value."""
        return Exclusion(frozenset(self.namespaces), None if self.selector is None else self.selector.selector())


class Slack(Form):
    """The resource slack: room that is held for pods to come. Without targets only marked workloads are mirrored
    (annotation slack.cagrpc.io/mirror)."""

    carrier: Literal["virtual", "buffer", "pods"] | None = None
    """Who makes room. `virtual`: the planner alone (needs `drive: plan`). `buffer`: the cluster-autoscaler, by
    CapacityBuffers. `pods`: pause pods that give way. Default: virtual with `drive: plan`, otherwise buffer where the
    cluster serves CapacityBuffers, otherwise pods."""
    targets: list[SlackTargetForm] = Field(default_factory=list)
    exclude: SlackExclude = SlackExclude()
    mirrors_per_namespace: Annotated[int, Field(ge=0)] = SlackSettings().mirrors_per_namespace
    """How many pods of one namespace are mirrored at most, whatever its workloads ask for by annotation."""
    pause_image: Annotated[str, Field(min_length=1)] = SlackSettings().pause_image
    """The image of pause pods."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        refuse_repeated("targets", (each.name for each in self.targets))
        if any(each.name == MIRRORS for each in self.targets):
            raise ValueError(f'targets: the name "{MIRRORS}" is that of mirrors which no target takes; choose another')
        return self


def refuse_repeated(what: str, names: Iterable[str]) -> None:
    """Raise ValueError where a name is a duplicate."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{what}: the name {shown(repeated[0])} is used twice; each needs its own")


def settings(written: Slack, groups: Sequence[NodeGroup], problems: list[str]) -> SlackSettings:
    """Return the controllers' settings; add unknown provisioners to `problems`."""
    return SlackSettings(
        carrier=None if written.carrier is None else Carrier(written.carrier),
        targets=tuple(_target(n, each, groups, problems) for n, each in enumerate(written.targets)),
        exclude=written.exclude.exclusion(),
        mirrors_per_namespace=written.mirrors_per_namespace,
        pause_image=written.pause_image,
    )


def _target(number: int, written: SlackTargetForm, groups: Sequence[NodeGroup], problems: list[str]) -> TargetSettings:
    where: dict[str, str] = {}
    if written.provisioner is not None:
        known = {group.provisioner: group.labels for group in groups}
        labels = known.get(written.provisioner, {})
        where = {key: labels[key] for key in (NODEPOOL_LABEL, PROVISIONER_NAME_LABEL) if key in labels}
        if not where:
            problems.append(
                f"slack.targets[{number}].provisioner: found {shown(written.provisioner)}, which is no provisioner "
                f"with node groups{did_you_mean(written.provisioner, known)}"
            )
    return TargetSettings(
        name=written.name,
        rate=written.rate,
        fixed=tuple(each.copies() for each in written.fixed),
        version=Version(written.version),
        base=Base(written.base),
        granularity=written.granularity,
        node_selector=tuple(where.items()),
        namespace=written.namespace or "",
        windows=tuple(each.window() for each in written.schedules),
    )
