"""Selectors of requests, evaluated on single devices with a memory and within bounds. What all devices of a node are to
all selectors is in `matching`; CEL in `cel`.

Upstream: dynamic-resource-allocation/structured (isSelectable, CmpRequestOverCapacity).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

from cagrpc.api.devices.objects import Device, DevicesAsked
from cagrpc.errors import InvalidInput
from solver.model.quantities import parse_quantity

if TYPE_CHECKING:
    from cagrpc.api.devices.cel import Expression

MOST_STEPS = 200_000
"""Of the evaluations of one round, over all selectors: some two seconds. The rest is evaluated in the next rounds."""
_MOST_EXPRESSIONS = 10_000
_LONGEST_SHOWN = 100
"""Characters of an expression that is told."""


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
            parts.append(
                "with " + " && ".join(f"({each})" if len(asked.selectors) > 1 else each for each in asked.selectors)
            )
        if asked.capacity:
            parts.append(f"of {', '.join(f'{name}={amount}' for name, amount in asked.capacity)}")
        if asked.tolerations:
            parts.append(f"tolerating {', '.join(map(str, asked.tolerations))}")
        return " ".join(parts)


def all_of(key: str) -> str:
    """Return the key of a request for all devices of a selector: of a node of which planning may give all of them, had
    by pods or not."""
    return f"all of {key}"


def extended(resource: str) -> str:
    """Return the key of an extended resource that a class backs."""
    return f"the extended resource {resource}"


class Matcher:
    """Evaluates selectors on devices, with a memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._expressions: dict[str, Expression | InvalidInput] = {}
        self._left = MOST_STEPS

    def begin(self) -> None:
        """Begin a round: each has a budget, so that no tenant's expressions keep others waiting."""
        with self._lock:
            self._left = MOST_STEPS
            if len(self._expressions) > _MOST_EXPRESSIONS:
                self._expressions.clear()

    @property
    def exhausted(self) -> bool:
        """Whether something was left for the next round."""
        return self._left <= 0

    def cheapest_first(self, selectors: Iterable[Selector]) -> list[Selector]:
        """Return the selectors in the order of what their expressions have cost so far."""
        return sorted(selectors, key=lambda each: (sum(map(self._cost, self._texts(each))), each.key))

    def problem(self, selector: Selector) -> str:
        """Return why the selector cannot be evaluated on any device; empty where it can."""
        with self._lock:
            for text in self._texts(selector):
                found = self._expression(text)
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
            expression = self._expression(text)
            if isinstance(expression, InvalidInput):
                raise expression
            before = expression.steps
            if self._left <= 0 and not expression.knows(device):
                raise InvalidInput("its selectors take long to evaluate; the rest of them is evaluated next time")
            try:
                matches = expression.matches(device)
            except InvalidInput as error:
                which = f"device {device.name}" if device.name else "a device"
                raise type(error)(f"{error} (on {which} of driver {device.driver})") from error
            finally:
                self._left -= expression.steps - before
            if not matches:
                return False
        return True

    def _texts(self, selector: Selector) -> tuple[str, ...]:
        return (*selector.of_class, *selector.asked.selectors)

    def _cost(self, text: str) -> int:
        found = self._expressions.get(text)
        return 0 if found is None or isinstance(found, InvalidInput) else found.steps

    def _expression(self, text: str) -> Expression | InvalidInput:
        found = self._expressions.get(text)
        if found is None:
            from cagrpc.api.devices.cel import Expression  # noqa: PLC0415 - a second, of which most clusters need none

            try:
                found = Expression(text)
            except InvalidInput as error:
                found = error
            self._expressions[text] = found
        return found


def _has_capacity(asked: DevicesAsked, device: Device) -> bool:
    """Return whether a device that is allocated once has the capacities that a request names (upstream:
    CmpRequestOverCapacity)."""
    has = dict(device.capacity)
    for name, amount in asked.capacity:
        there = has.get(name if "/" in name else f"{device.driver}/{name}")
        if there is None or parse_quantity(there) < parse_quantity(amount):
            return False
    return True
