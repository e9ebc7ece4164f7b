"""CEL expressions over one device, as Kubernetes evaluates the selectors of device classes and claims (upstream:
dynamic-resource-allocation/cel), on cel-python. Which device is asked about and what an answer means is `matching`'s.

An expression comes from a tenant, so it is bounded three ways: its length is Kubernetes', every step of its evaluation
is counted against a budget together with the size of the values it makes, and functions that Kubernetes does not
have are refused. What was read of a device is remembered with the answer: devices that differ only in what an
expression does not read cost one evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lark
from celpy import celtypes
from celpy.celparser import CELParseError, CELParser
from celpy.evaluation import Activation, CELEvalError, Evaluator

from cagrpc.api.devices.cel_functions import FUNCTIONS, MACROS, Semver, quantity
from cagrpc.api.devices.objects import AttributeValue, Device, SemanticVersion
from cagrpc.errors import InvalidInput

LONGEST_EXPRESSION = 10 * 1024
"""Bytes, as the API server allows (resource.k8s.io: CELSelectorExpressionMaxLength)."""
MOST_STEPS = 5_000
"""Of one evaluation: nodes of the syntax tree visited, and one for every eight elements or characters of a value. Some
40 ms; a selector over ten attributes takes 200."""
_ELEMENTS_PER_STEP = 8

_PARSERS: list[CELParser] = []


class UnusableExpression(InvalidInput):
    """An expression that cannot be evaluated on any device."""


class ExpressionFailed(InvalidInput):
    """An expression that fails on this device: the scheduler stops at such a pod, too."""


@dataclass(slots=True)
class _Outcomes:
    """A decision tree of what an expression has read and answered: reads happen in an order that earlier ones
    decide."""

    read: tuple[str, ...] = ()
    """What is read next; empty at a leaf."""
    after: dict[Any, _Outcomes] = field(default_factory=dict)
    """By the value that was read."""
    matches: bool = False
    failure: str = ""


class Expression:
    """A compiled expression. Not thread-safe."""

    def __init__(self, text: str) -> None:
        """Raises UnusableExpression."""
        self.text = text
        self.steps = 0
        """Taken by all evaluations so far."""
        if len(text.encode()) > LONGEST_EXPRESSION:
            raise UnusableExpression(f"the expression has more than {LONGEST_EXPRESSION} bytes")
        self._tree = _parsed(text)
        self._too_costly = False
        self._outcomes: _Outcomes | None = None

    def matches(self, device: Device) -> bool:
        """Return whether the expression is true of the device. Raises ExpressionFailed where it has no answer, and
        UnusableExpression once it has taken too many steps."""
        found = self._known(device) or self._evaluate(device)
        if found.failure:
            raise ExpressionFailed(found.failure)
        return found.matches

    def knows(self, device: Device) -> bool:
        """Return whether the answer is known without evaluating."""
        return self._known(device) is not None

    def _known(self, device: Device) -> _Outcomes | None:
        at = self._outcomes
        while at is not None and at.read:
            at = at.after.get(_value_at(device, at.read))
        return at

    def _evaluate(self, device: Device) -> _Outcomes:
        if self._too_costly:
            raise UnusableExpression(f"the expression takes more than {MOST_STEPS} steps on one device")
        reads: list[tuple[str, ...]] = []
        steps = _Steps()
        matches, failure = False, ""
        try:
            activation = Activation(functions=dict(FUNCTIONS))
            found = _Evaluator(self._tree, activation, steps).evaluate({"device": _device_map(device, reads)})
            if isinstance(found, celtypes.BoolType):
                matches = bool(found)
            else:
                failure = f"the expression is no condition: it evaluates to {_kind(found)}"
        except CELEvalError as error:
            failure = _why(error)
        except _TooManyStepsError as error:
            self._too_costly = True
            raise UnusableExpression(f"the expression takes more than {MOST_STEPS} steps on one device") from error
        except RecursionError as error:
            self._too_costly = True
            raise UnusableExpression("the expression is nested too deeply") from error
        except Exception as error:  # noqa: BLE001 - the library raises whatever Python does on unforeseen operands
            failure = f"{type(error).__name__}: {error}"
        finally:
            self.steps += steps.taken
        return self._remember(device, reads, _Outcomes(matches=matches, failure=failure[:300]))

    def _remember(self, device: Device, reads: list[tuple[str, ...]], outcome: _Outcomes) -> _Outcomes:
        keys = list(dict.fromkeys(reads))
        if self._outcomes is None:
            self._outcomes = _Outcomes()
        at = self._outcomes
        for key in keys:
            at.read = key
            at = at.after.setdefault(_value_at(device, key), _Outcomes())
        at.matches, at.failure = outcome.matches, outcome.failure
        return at


def _parsed(text: str) -> lark.Tree[lark.Token]:
    if not _PARSERS:
        _PARSERS.append(CELParser())  # builds its grammar's tables: half a second, once
    try:
        tree: lark.Tree[lark.Token] = _PARSERS[0].parse(text)
    except CELParseError as error:
        where = f" in line {error.line}, column {error.column}" if error.line else ""
        raise UnusableExpression(f"the expression is not CEL{where}") from error
    except (RecursionError, lark.exceptions.LarkError, ValueError) as error:
        raise UnusableExpression(f"the expression cannot be read: {error!s:.200}") from error
    for node in tree.iter_subtrees():
        name = _called(node)
        if name is not None and name not in FUNCTIONS and name not in MACROS:
            raise UnusableExpression(f"the expression calls {name}(), which planning does not know")
    return tree


def _called(node: lark.Tree[lark.Token]) -> str | None:
    if node.data in ("ident_arg", "dot_ident_arg"):
        return str(node.children[0])
    return str(node.children[1]) if node.data == "member_dot_arg" else None


class _TooManyStepsError(Exception):
    pass


class _Steps:
    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0

    def take(self, steps: int) -> None:
        self.taken += steps
        if self.taken > MOST_STEPS:
            raise _TooManyStepsError


class _Evaluator(Evaluator):
    """cel-python's evaluator, counting, with Kubernetes' `cel.bind` and the strict `has`."""

    def __init__(self, ast: lark.Tree[lark.Token], activation: Activation, steps: _Steps) -> None:
        super().__init__(ast, activation)
        self._steps = steps

    def sub_evaluator(self, ast: lark.Tree[lark.Token]) -> _Evaluator:
        return _Evaluator(ast, self.activation, self._steps)

    def _visit_tree(self, tree: lark.Tree[lark.Token]) -> Any:
        self._steps.take(1)
        value = super()._visit_tree(tree)
        if tree.data == "member":  # every operand and every argument is one
            self._charge(value)
        return value

    def member_dot_arg(self, tree: lark.Tree[lark.Token]) -> Any:
        if str(tree.children[1]) == "bind" and _identifier(tree.children[0]) == "cel":
            return self._bind(tree.children[2:])
        return super().member_dot_arg(tree)

    def macro_has_eval(self, exprlist: lark.Tree[lark.Token]) -> Any:
        """Only a missing member makes `has` false; what fails before it is reached fails."""
        node: Any = exprlist
        while isinstance(node, lark.Tree) and node.data != "member_dot" and len(node.children) == 1:
            node = node.children[0]
        if not isinstance(node, lark.Tree) or node.data != "member_dot":
            return CELEvalError("has() takes a field, such as device.attributes[...].name", TypeError, None)
        holder: Any = self.visit(_tree(node.children[0]))
        if isinstance(holder, CELEvalError):
            return holder
        if not isinstance(holder, celtypes.MapType):
            return CELEvalError(f"{_kind(holder)} has no fields", TypeError, None)
        return celtypes.BoolType(celtypes.StringType(str(node.children[1])) in holder)

    def _bind(self, arguments: list[Any]) -> Any:
        parts = arguments[0].children if arguments else []
        name = _identifier(parts[0]) if len(parts) == 3 else None
        if name is None:
            return CELEvalError("cel.bind takes a name, a value and an expression", TypeError, None)
        value = self.visit(parts[1])
        if isinstance(value, CELEvalError):
            return value
        inner = self.sub_evaluator(parts[2])
        try:
            return inner.evaluate({name: value})
        except CELEvalError as error:
            return error

    def _charge(self, value: Any) -> None:
        """Count the elements of a value; shared ones as often as they occur, as comparing would."""
        if isinstance(value, (str, bytes)):
            self._steps.take(len(value) // _ELEMENTS_PER_STEP)
        elif isinstance(value, celtypes.ListType):
            self._steps.take(-(-len(value) // _ELEMENTS_PER_STEP))
            for each in value:
                self._charge(each)
        elif isinstance(value, celtypes.MapType) and not isinstance(value, _ReadMap):
            self._steps.take(len(value))
            for each in value.values():
                self._charge(each)


def _tree(node: Any) -> lark.Tree[lark.Token]:
    return node  # type: ignore[no-any-return]  # the grammar says so


def _identifier(node: Any) -> str | None:
    """Return the name that an expression consists of, if it is one."""
    while isinstance(node, lark.Tree) and len(node.children) == 1:
        if node.data == "ident":
            return str(node.children[0])
        node = node.children[0]
    return None


class _ReadMap(celtypes.MapType):
    """A map of a device that notes what is read of it."""

    def __init__(self, items: Mapping[Any, Any], path: tuple[str, ...], reads: list[tuple[str, ...]]) -> None:
        super().__init__()
        for key, value in items.items():
            dict.__setitem__(self, celtypes.StringType(key), value)
        self._path, self._reads = path, reads

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            raise KeyError(key)
        self._reads.append((*self._path, str(key)))
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        self._reads.append((*self._path, str(key)))
        return dict.__contains__(self, key)

    def __iter__(self) -> Any:
        self._reads.append((*self._path, ""))
        return dict.__iter__(self)

    def __len__(self) -> int:
        self._reads.append((*self._path, ""))
        return dict.__len__(self)

    def keys(self) -> Any:
        self._reads.append((*self._path, ""))
        return dict.keys(self)

    def values(self) -> Any:
        self._reads.append((*self._path, ""))
        return dict.values(self)

    def items(self) -> Any:
        self._reads.append((*self._path, ""))
        return dict.items(self)

    __hash__ = None  # type: ignore[assignment]  # as of every dict


class _Domains(_ReadMap):
    """`device.attributes` and `device.capacity`: a domain that the device does not have is empty."""

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            raise TypeError(f"a domain is a string, not {_kind(key)}")
        self._reads.append((*self._path, str(key)))
        if dict.__contains__(self, key):
            return celtypes.MapType.__getitem__(self, key)
        return _ReadMap({}, (*self._path, str(key)), self._reads)


def _device_map(device: Device, reads: list[tuple[str, ...]]) -> celtypes.MapType:
    def domains(kind: str, found: Mapping[str, Mapping[str, Any]]) -> _Domains:
        path = (kind,)
        return _Domains(
            {domain: _ReadMap(names, (*path, domain), reads) for domain, names in found.items()}, path, reads
        )

    attributes: dict[str, dict[str, Any]] = {}
    for name, value in device.attributes:
        domain, _, own = name.partition("/")
        attributes.setdefault(domain, {})[own] = _cel_value(value)
    capacity: dict[str, dict[str, Any]] = {}
    for name, amount in device.capacity:
        domain, _, own = name.partition("/")
        capacity.setdefault(domain, {})[own] = quantity(celtypes.StringType(amount))
    return _ReadMap(
        {
            "driver": celtypes.StringType(device.driver),
            "allowMultipleAllocations": celtypes.BoolType(device.allow_multiple_allocations),
            "attributes": domains("attributes", attributes),
            "capacity": domains("capacity", capacity),
        },
        (),
        reads,
    )


def _cel_value(value: AttributeValue) -> Any:
    if isinstance(value, tuple):
        return celtypes.ListType([_cel_value(each) for each in value])
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, int):
        return celtypes.IntType(value)
    if isinstance(value, SemanticVersion):
        return Semver.of(value.text)
    return celtypes.StringType(value)


def _value_at(device: Device, read: tuple[str, ...]) -> Any:
    """Return what a device has at a path, in a form that tells apart all that an expression can. A path that ends with
    an empty name is all that is below it."""
    if len(read) == 1:
        return device.driver if read[0] == "driver" else device.allow_multiple_allocations
    kind, domain, *name = read
    values: tuple[tuple[str, Any], ...] = device.attributes if kind == "attributes" else device.capacity
    if not name and domain:  # whether it has the domain
        return any(key.partition("/")[0] == domain for key, _ in values)
    if name and name[0]:
        own = f"{domain}/{name[0]}"
        return next(((type(value).__name__, value) for key, value in values if key == own), None)
    prefix = f"{domain}/" if domain else ""
    return tuple((key, type(value).__name__, value) for key, value in values if key.startswith(prefix))


def _why(error: CELEvalError) -> str:
    said = error.args[0] if error.args else error
    return f"{said}".split(" (in activation", 1)[0]


def _kind(value: Any) -> str:
    return type(value).__name__.removesuffix("Type").lower()
