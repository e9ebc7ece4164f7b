"""Fields of Kubernetes' types that sections share: labels, requirements, taints, quantities; with their validation and
conversion to the planner's values. Error messages are formatted in `problems`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from cagrpc.config.problems import shown
from cagrpc.fleet.provisioners import NODEPOOL_LABEL, PROVISIONER_NAME_LABEL
from cagrpc.forms import Form
from solver.model import CPU, MEMORY, NODES, PODS, Operator, Requirement, Taint, TaintEffect
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
LabelValue = Annotated[str, AfterValidator(_label_value)]
Labels = dict[LabelKey, LabelValue]
ObjectName = Annotated[str, BeforeValidator(_object_name)]
NonNegativeQuantity = Annotated[
    Any,
    AfterValidator(_quantity),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}),
]


def amounts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Return amounts in the resources' units, rounded down: for what is offered or allowed."""
    return {resource: amount(resource, value, round_up=False) for resource, value in (quantities or {}).items()}


def amounts_asked(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Return amounts in the resources' units, rounded up: for what is requested."""
    return {resource: amount(resource, value, round_up=True) for resource, value in quantities.items()}


def _countable(quantities: dict[str, Any]) -> dict[str, Any]:
    amounts(quantities)  # raises where one is too large in its unit: cpu is counted in thousandths
    return quantities


Allocatable = Annotated[
    dict[Annotated[str, AfterValidator(_resource)], NonNegativeQuantity], AfterValidator(_countable)
]
Limits = Annotated[
    dict[Annotated[str, AfterValidator(_limited_resource)], NonNegativeQuantity], AfterValidator(_countable)
]
Weight = Annotated[int, AfterValidator(_weight), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 100})]


class RequirementForm(Form):
    """A condition on a node's labels."""

    key: LabelKey
    operator: Annotated[Operator, Field(strict=False)]
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
    effect: Annotated[TaintEffect, Field(strict=False)]

    def taint(self) -> Taint:
        """Return the planner's value."""
        return Taint(self.key, self.effect, self.value or "")


Requirements = Annotated[list[RequirementForm], BeforeValidator(_empty_for_none)]
Taints = Annotated[list[TaintForm], BeforeValidator(_empty_for_none)]
