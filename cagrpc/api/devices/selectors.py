"""Selectors of requests, evaluated on single devices with a memory and within bounds. What all devices of a node are to
all selectors is in `matching`; CEL in `cel`.

Upstream: dynamic-resource-allocation/structured (isSelectable, CmpRequestOverCapacity).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from threading import RLock
from typing import TYPE_CHECKING

from cagrpc.api.devices.expressions import (
    DEVICE_CLASSES,
    Expressions,
    Need,
    NotYet,
    namespace,
)
from cagrpc.api.devices.objects import Device, DevicesAsked
from cagrpc.errors import InvalidInput
from solver.model.quantities import parse_quantity

if TYPE_CHECKING:
    from cagrpc.api.devices.cel import Expression

_LONGEST_SHOWN = 100
"""Characters of an expression that is told."""
_LONGEST_KEY = 1_000
"""Characters of the expressions of one request in its key; of longer ones a digest stands there."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Which devices one request takes: its class's conditions and its own, taints and capacities included."""

    asked: DevicesAsked
    """Count and mode do not count."""
    of_class: tuple[str, ...] = ()
    """CEL expressions of its class."""
    resource: str = ""
    """The extended resource that these devices provide where no device plugin does; empty of a claim's."""

    @property
    def key(self) -> str:
        """The planner's key, which people read too: equal keys select equal devices."""
        asked = self.asked
        if self.resource:
            return extended(self.resource)
        parts = [asked.class_name or "any class"]
        if asked.selectors:
            parts.append("with " + _shortened(asked.selectors))
        if asked.capacity:
            parts.append(f"of {', '.join(f'{name}={amount}' for name, amount in asked.capacity)}")
        if asked.tolerations:
            parts.append(f"tolerating {', '.join(map(str, asked.tolerations))}")
        return " ".join(parts)


def _shortened(expressions: tuple[str, ...]) -> str:
    if sum(map(len, expressions)) <= _LONGEST_KEY:
        return " && ".join(f"({each})" if len(expressions) > 1 else each for each in expressions)
    digest = sha256()
    for each in expressions:
        digest.update(f"{len(each)} {each}".encode(errors="surrogatepass"))
    return f"{expressions[0]:.{_LONGEST_SHOWN}}... ({len(expressions)} expressions, {digest.hexdigest()})"


def needs(of: str, selectors: Iterable[Selector]) -> Iterator[Need]:
    """Yield what a pod of this namespace needs in use for its selectors."""
    for each in selectors:
        yield namespace(of), each
        yield from ((namespace(of), text) for text in each.asked.selectors)
        yield from ((DEVICE_CLASSES, text) for text in each.of_class)


def all_of(key: str) -> str:
    """Return the key of a request for all devices of a selector: of a node of which planning may give all of them, had
    by pods or not."""
    return f"all of {key}"


def extended(resource: str) -> str:
    """Return the key of an extended resource that a class backs."""
    return f"the extended resource {resource}"


class Matcher:
    """Evaluates selectors on devices, with a memory and in rounds. Thread-safe; `problem` waits for nobody."""

    def __init__(self, expressions: Expressions) -> None:
        """`expressions` are evaluated in the shares of who uses them."""
        self._lock = RLock()
        self._expressions, self._shares = expressions, expressions.shares
        self._left_out = 0

    def begin(self) -> None:
        """Begin a round: each has a budget, so that no tenant's expressions keep others waiting."""
        self._shares.begin()

    @property
    def left_out(self) -> int:
        """How often an answer was left for the next round so far."""
        return self._left_out

    def cheapest_first(self, selectors: Iterable[Selector]) -> list[Selector]:
        """Return the selectors in the order of what their expressions have cost so far."""
        return sorted(selectors, key=lambda each: (sum(map(self._cost, self._texts(each))), each.key))

    def problem(self, selector: Selector) -> str:
        """Return why the selector cannot be evaluated on any device; empty where it can."""
        for text in self._texts(selector):
            found = self._expressions.found(text)
            if isinstance(found, InvalidInput):
                whose = f" of DeviceClass {selector.asked.class_name}" if text in selector.of_class else ""
                return f"{found}: {text:.{_LONGEST_SHOWN}}{whose}"
        return ""

    def matches(self, selector: Selector, device: Device) -> bool:
        """Return whether the device is of the selector's, taints apart. Raises InvalidInput where an expression has no
        answer."""
        with self._lock:
            return self._hold(selector, device) and _has_capacity(selector.asked, device)

    def _hold(self, selector: Selector, device: Device) -> bool:
        for text in self._texts(selector):
            expression = self._expressions.found(text)
            if isinstance(expression, InvalidInput):
                self._left_out += isinstance(expression, NotYet)
                raise expression
            if not self._matches(text, expression, device):
                return False
        return True

    def _matches(self, text: str, expression: Expression, device: Device) -> bool:
        owner = ""
        if not expression.knows(device):
            owner = self._expressions.owner(text, device.driver)
            if self._shares.left(owner, device.driver) <= 0:
                self._shares.take(owner, 0)
                self._left_out += 1
                raise NotYet("its selectors take long to evaluate; the rest of them is evaluated next time")
        steps, remembered = expression.steps, expression.remembered
        try:
            return expression.matches(device)
        except InvalidInput as error:
            which = f"device {device.name}" if device.name else "a device"
            raise type(error)(f"{error} (on {which} of driver {device.driver})") from error
        finally:
            if expression.steps > steps:
                self._shares.take(owner, expression.steps - steps, device.driver)
                self._expressions.remembered(owner, expression.remembered - remembered)

    def _texts(self, selector: Selector) -> tuple[str, ...]:
        return (*selector.of_class, *selector.asked.selectors)

    def _cost(self, text: str) -> int:
        found = self._expressions.found(text)
        return 0 if isinstance(found, InvalidInput) else found.steps


def _has_capacity(asked: DevicesAsked, device: Device) -> bool:
    """Return whether a device that is allocated once has the capacities that a request names (upstream:
    CmpRequestOverCapacity)."""
    has = dict(device.capacity)
    for name, amount in asked.capacity:
        there = has.get(name if "/" in name else f"{device.driver}/{name}")
        if there is None or parse_quantity(there) < parse_quantity(amount):
            return False
    return True
