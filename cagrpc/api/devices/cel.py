"""CEL expressions over one device, as Kubernetes evaluates the selectors of device classes and claims (upstream:
dynamic-resource-allocation/cel), on cel-python. Which device is asked about and what an answer means is `matching`'s.

An expression comes from a tenant, so it is bounded four ways: its length is Kubernetes', what reading it takes is known
before (`reading_steps`), every step of its evaluation is counted against a budget together with the size of the values
it makes and of the patterns it matches, and functions that Kubernetes does not have are refused. What was read of a
device is remembered with the answer: devices that differ only in what an expression does not read cost one evaluation.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import lark
from celpy import celtypes
from celpy.evaluation import Activation, CELEvalError, Evaluator

from cagrpc.api.devices.cel_functions import (
    FUNCTIONS,
    FUNCTIONS_OF_PATTERNS,
    MACROS,
    Semver,
    both,
    either,
    quantity,
)
from cagrpc.api.devices.cel_grammar import SyntaxNode, parsed, tokens_in
from cagrpc.api.devices.objects import AttributeValue, Device, SemanticVersion
from cagrpc.errors import InvalidInput

LONGEST_EXPRESSION = 10 * 1024
"""Bytes, as the API server allows (resource.k8s.io: CELSelectorExpressionMaxLength)."""
MOST_STEPS = 5_000
"""How many steps one evaluation takes at most: nodes of the syntax tree visited, and one for every eight elements or
characters of a value. That is some 20 ms; a selector over ten attributes takes 200."""
_ELEMENTS_PER_STEP = 8
_STEPS_PER_TOKEN = 5
"""What reading a token costs."""

logging.getLogger("celpy").setLevel(logging.WARNING)  # it writes out whole values


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
    """What reading has come to, by the value that was read."""
    matches: bool = False
    failure: str = ""


def reading_steps(text: str) -> int:
    """Return what reading an expression takes, in steps of an evaluation."""
    return _STEPS_PER_TOKEN * tokens_in(text[:LONGEST_EXPRESSION])


class Expression:
    """An expression that was read. Not thread-safe."""

    def __init__(self, text: str) -> None:
        """Raises UnusableExpression."""
        self.steps = 0
        """Taken by all evaluations so far."""
        self.remembered = 0
        """Values that are remembered with the answers."""
        if len(text.encode()) > LONGEST_EXPRESSION:
            raise UnusableExpression(f"the expression has more than {LONGEST_EXPRESSION} bytes")
        self._tree = _usable(text)
        self._why_unusable = ""
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

    def forget(self) -> None:
        """Forget the answers."""
        self._outcomes, self.remembered = None, 0

    def _known(self, device: Device) -> _Outcomes | None:
        at = self._outcomes
        while at is not None and at.read:
            at = at.after.get(_value_at(device, at.read))
        return at

    def _evaluate(self, device: Device) -> _Outcomes:
        if self._why_unusable:
            raise UnusableExpression(self._why_unusable)
        reads: list[tuple[str, ...]] = []
        steps = _Steps()
        matches, failure = False, ""
        try:
            counted = {name: partial(function, steps.take) for name, function in FUNCTIONS_OF_PATTERNS.items()}
            activation = Activation(functions={**FUNCTIONS, **counted})
            found = _Evaluator(self._tree, activation, steps).evaluate({"device": _device_map(device, reads)})
            if isinstance(found, celtypes.BoolType):
                matches = bool(found)
            else:
                failure = f"the expression is not a condition: it evaluates to {_kind(found)}"
        except CELEvalError as error:
            failure = _why(error)
        except _TooManyStepsError as error:
            raise self._unusable(f"the expression takes more than {MOST_STEPS} steps on one device") from error
        except RecursionError as error:
            raise self._unusable("the expression is nested too deeply") from error
        except Exception as error:  # noqa: BLE001 - the library raises whatever Python does on unforeseen operands
            failure = f"{type(error).__name__}: {error}"
        finally:
            self.steps += steps.taken
        return self._remember(device, reads, _Outcomes(matches=matches, failure=failure[:300]))

    def _unusable(self, why: str) -> UnusableExpression:
        """Say so from now on, on every device."""
        self._why_unusable, self._tree = why, _NOTHING
        return UnusableExpression(why)

    def _remember(self, device: Device, reads: list[tuple[str, ...]], outcome: _Outcomes) -> _Outcomes:
        keys = list(dict.fromkeys(reads))
        if self._outcomes is None:
            self._outcomes = _Outcomes()
        at = self._outcomes
        for key in keys:
            at.read = key
            at = at.after.setdefault(_value_at(device, key), _Outcomes())
        self.remembered += len(keys) + 1  # at most
        at.matches, at.failure = outcome.matches, outcome.failure
        return at


_NOTHING = SyntaxNode("expr", (), 1)


def _usable(text: str) -> SyntaxNode:
    try:
        tree = parsed(text)
    except lark.exceptions.UnexpectedInput as error:
        where = f" in line {error.line}, column {error.column}" if error.line > 0 else ""
        raise UnusableExpression(f"the expression is not CEL{where}") from error
    except (RecursionError, lark.exceptions.LarkError, ValueError) as error:
        raise UnusableExpression(f"the expression cannot be read: {error!s:.200}") from error
    for node in tree.nodes():
        name = _called(node)
        if name is not None and not (name in FUNCTIONS or name in FUNCTIONS_OF_PATTERNS or name in MACROS):
            raise UnusableExpression(f"the expression calls {name:.100}(), which is not supported")
        if node.data == "member_object":
            raise UnusableExpression("the expression makes a message, which is not supported")
    return tree


def _called(node: SyntaxNode) -> str | None:
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
    """cel-python's evaluator over our nodes, counting, with Kubernetes' `cel.bind` and the strict `has`. Its errors say
    nothing of other values: those of cel-python that do double with each `||`."""

    def __init__(self, ast: SyntaxNode, activation: Activation, steps: _Steps) -> None:
        super().__init__(_as_tree(ast), activation)
        self._steps = steps

    def sub_evaluator(self, ast: Any) -> _Evaluator:
        return _Evaluator(ast, self.activation, self._steps)

    def visit_children(self, tree: Any) -> list[Any]:
        return [self._visit_tree(each) if isinstance(each, SyntaxNode) else each for each in tree.children]

    def _visit_tree(self, tree: Any) -> Any:
        self._steps.take(tree.steps)
        value = getattr(self, tree.data)(tree)
        if tree.data in ("member", "literal"):  # every operand and every argument is one
            self._charge(value)
        return value

    def ident_value(self, name: str, root_scope: bool = False) -> Any:
        try:
            return super().ident_value(name, root_scope)
        except KeyError:
            return CELEvalError(f"undeclared reference to '{name:.100}'", KeyError, None)

    def function_eval(self, name_token: Any, exprlist: Any = None) -> Any:
        if str(name_token) not in self.activation.functions:
            return CELEvalError(f"undeclared reference to '{name_token:.100}'", KeyError, None)
        return super().function_eval(name_token, exprlist)

    def method_eval(self, object: Any, method_ident: Any, exprlist: Any = None) -> Any:  # noqa: A002 - as it is called
        if str(method_ident) not in self.activation.functions:
            return CELEvalError(f"undeclared reference to '{method_ident:.100}'", KeyError, None)
        return super().method_eval(object, method_ident, exprlist)

    def primary(self, tree: Any) -> Any:
        (child,) = tree.children
        if child.data == "ident_arg" and len(child.children) == 1:  # a call without arguments
            return self.function_eval(child.children[0], [])
        return super().primary(tree)

    def member_dot_arg(self, tree: Any) -> Any:
        name = str(tree.children[1])
        if name == "bind" and _identifier(tree.children[0]) == "cel":
            return self._bind(tree.children[2:])
        if name in ("all", "exists"):
            return self._fold(tree, every=name == "all")
        return super().member_dot_arg(tree)

    def _fold(self, tree: Any, *, every: bool) -> Any:
        items = self.visit(tree.children[0])
        if isinstance(items, CELEvalError):
            return items
        answers = map(self.build_ss_macro_eval(tree), items)
        return reduce(both if every else either, answers, celtypes.BoolType(every))

    def macro_has_eval(self, exprlist: Any) -> Any:
        """Only a missing member makes `has` false; what fails before it is reached fails."""
        node: Any = exprlist
        while isinstance(node, SyntaxNode) and node.data != "member_dot" and len(node.children) == 1:
            node = node.children[0]
        if not isinstance(node, SyntaxNode) or node.data != "member_dot":
            return CELEvalError("has() takes a field, such as device.attributes[...].name", TypeError, None)
        holder: Any = self.visit(node.children[0])
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


def _as_tree(node: Any) -> lark.Tree[lark.Token]:
    return node  # type: ignore[no-any-return]  # to the evaluator it is one


def _identifier(node: Any) -> str | None:
    """Return the name that an expression consists of, if it is one."""
    while isinstance(node, SyntaxNode) and len(node.children) == 1:
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

    def _whole(self) -> dict[Any, Any]:
        self._reads.append((*self._path, ""))
        return self

    def __iter__(self) -> Any:
        return dict.__iter__(self._whole())

    def __len__(self) -> int:
        return dict.__len__(self._whole())

    def keys(self) -> Any:
        return dict.keys(self._whole())

    def values(self) -> Any:
        return dict.values(self._whole())

    def items(self) -> Any:
        return dict.items(self._whole())

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
    def domains(kind: str, values: Iterable[tuple[str, Any]]) -> _Domains:
        path, found = (kind,), defaultdict[str, dict[str, Any]](dict)
        for name, value in values:
            domain, _, own = name.partition("/")
            found[domain][own] = value
        return _Domains(
            {domain: _ReadMap(names, (*path, domain), reads) for domain, names in found.items()}, path, reads
        )

    capacity = ((name, quantity(celtypes.StringType(amount))) for name, amount in device.capacity)
    return _ReadMap(
        {
            "driver": celtypes.StringType(device.driver),
            "allowMultipleAllocations": celtypes.BoolType(device.allow_multiple_allocations),
            "attributes": domains("attributes", ((name, _cel_value(value)) for name, value in device.attributes)),
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
