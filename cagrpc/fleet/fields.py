"""Fields of Kubernetes' types that sections share: labels, requirements, taints, tolerations, selectors, quantities.
They are validated as a file has them, and read into the planner's values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from cagrpc.errors import shown
from cagrpc.fleet.provisioners import NODEPOOL_LABEL, PROVISIONER_NAME_LABEL
from cagrpc.forms import Form, ReadAs
from solver.model import (
    CPU,
    MEMORY,
    NODES,
    PODS,
    Operator,
    PodSelector,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from solver.model.quantities import amount, parse_quantity

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")


def _qualified(text: str, what: str) -> str:
    prefix, slash, name = text.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _DOMAIN.fullmatch(prefix)):
        raise ValueError(f'found {shown(text)}, expected {what}, such as "example.com/name"')
    return text


def _label_key(text: str) -> str:
    if text in ("kubernetes.io/hostname", NODEPOOL_LABEL, PROVISIONER_NAME_LABEL):
        raise ValueError(f"found {shown(text)}, which is set for each node and cannot be asked for")
    return _qualified(text, "the key of a label")


def _label_value(text: str) -> str:
    if text and not _NAME.fullmatch(text):
        raise ValueError(f'found {shown(text)}, expected letters, digits, ".", "_" or "-", at most 63')
    return text


def _object_name(text: Any) -> Any:
    if text is None or text == "":
        raise ValueError("is empty; give the provisioner a name")
    if isinstance(text, str) and not _DNS_LABEL.fullmatch(text):
        raise ValueError(f'found {shown(text)}, expected lower-case letters, digits, "-" or ".", at most 63')
    return text


def _resource(text: str) -> str:
    if text in (CPU, MEMORY, PODS, "ephemeral-storage") or text.startswith(("hugepages-", "attachable-volumes-")):
        return text
    if "/" not in text:
        hint = '"nvidia.com/gpu"' if text in ("gpu", "gpus") else '"cpu", "memory", "pods" or "example.com/device"'
        raise ValueError(f"found {shown(text)}, expected the name of a resource, such as {hint}")
    return _qualified(text, "the name of a resource")


def _limited_resource(text: str) -> str:
    return text if text == NODES else _resource(text)


def _quantity(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError(f'found {shown(value)}, expected a quantity, such as 4, "500m" or "16Gi"')  # noqa: TRY004 - pydantic collects ValueErrors
    value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    parse_quantity(value)
    return value


def _weight(weight: int) -> int:
    if not 1 <= weight <= 100:
        raise ValueError(f"found {shown(weight)}, expected a whole number from 1 to 100, or leave it out")
    return weight


def _empty_for_none(value: Any) -> Any:
    return [] if value is None else value


LabelKey = Annotated[str, AfterValidator(_label_key)]
DnsLabel = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
LabelValue = Annotated[str, AfterValidator(_label_value)]
Labels = dict[LabelKey, LabelValue]
ObjectName = Annotated[str, BeforeValidator(_object_name)]
NonNegativeQuantity = Annotated[
    Any,
    AfterValidator(_quantity),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}),
]


def _offered(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {resource: amount(resource, value, round_up=False) for resource, value in quantities.items()}


def _asked(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {resource: amount(resource, value, round_up=True) for resource, value in quantities.items()}


_Quantities = dict[Annotated[str, AfterValidator(_resource)], NonNegativeQuantity]
Allocatable = Annotated[dict[str, int], ReadAs(_Quantities, _offered)]
"""Amounts in the resources' units, rounded down."""
Limits = Annotated[
    dict[str, int], ReadAs(dict[Annotated[str, AfterValidator(_limited_resource)], NonNegativeQuantity], _offered)
]
Requests = Annotated[dict[str, int], ReadAs(Annotated[_Quantities, Field(min_length=1)], _asked)]
"""Amounts in the resources' units, rounded up."""
Weight = Annotated[int, AfterValidator(_weight), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 100})]


class RequirementForm(Form):
    """A condition on a node's labels."""

    key: LabelKey
    operator: Operator
    values: Annotated[list[LabelValue], BeforeValidator(_empty_for_none)] = Field(default=[])

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> Self:
        count = len(self.values)
        match self.operator:
            case Operator.IN | Operator.NOT_IN:
                right, wanted = count >= 1, "at least one value"
            case Operator.EXISTS | Operator.DOES_NOT_EXIST:
                right, wanted = count == 0, "no values"
            case _:
                right, wanted = count == 1 and self.values[0].isdecimal(), "one value that is a whole number"
        if not right:
            raise ValueError(f"values: found {shown(self.values)}, expected {wanted} with operator {self.operator}")
        return self

    def requirement(self) -> Requirement:
        """Return the planner's value."""
        return Requirement(self.key, self.operator, tuple(self.values))


class TaintForm(Form):
    key: LabelKey
    value: LabelValue | None = None
    effect: TaintEffect

    def taint(self) -> Taint:
        """Return the planner's value."""
        return Taint(self.key, self.effect, self.value or "")


class TolerationForm(Form):
    """v1.Toleration."""

    key: LabelKey | None = None
    """The key of the taint. The default is all taints, with the operator Exists."""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect of the taint. The default is all effects."""

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


Requirements = Annotated[
    tuple[Annotated[Requirement, ReadAs(RequirementForm, RequirementForm.requirement)], ...],
    BeforeValidator(_empty_for_none),
]
Taints = Annotated[tuple[Annotated[Taint, ReadAs(TaintForm, TaintForm.taint)], ...], BeforeValidator(_empty_for_none)]
Tolerations = tuple[Annotated[Toleration, ReadAs(TolerationForm, TolerationForm.toleration)], ...]


class LabelSelector(Form):
    """Pods by their labels; all conditions hold together."""

    match_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    match_expressions: Requirements = ()
    """Requirements with the operators In, NotIn, Exists and DoesNotExist."""

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
        return PodSelector((*equal, *self.match_expressions))


Selector = Annotated[PodSelector, ReadAs(LabelSelector, LabelSelector.selector)]
