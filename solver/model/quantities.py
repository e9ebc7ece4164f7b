"""Kubernetes quantities ("500m", "1.5Gi", "2e3") to exact integers and back: the one parser of cagrpc.

Only text and numbers live here. Which resource is asked for, and whether a fraction is rounded towards more (what a
pod requests) or towards less (what a node offers), is up to the caller. Grammar and suffixes after
apimachinery's `resource.Quantity` (pkg/api/resource); unlike there, a negative quantity is always an error, because
none of the quantities that planning reads can be one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

from solver.model.objects import ATTACHABLE_VOLUMES, CPU, MEMORY

Quantity = str | int | float | Fraction
"""Text as Kubernetes writes it, or a number as YAML and JSON give it."""

LARGEST_AMOUNT = 2**63 - 1
"""Nothing larger is a quantity: Kubernetes counts in 64 bits too."""

_LONGEST_TEXT = 64
_LARGEST_EXPONENT = 30

_SUFFIXES: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i|))",
)


def parse_quantity(quantity: Quantity) -> Fraction:
    """The exact value in base units (cores, bytes, pieces).

    Raises ValueError, with what was found and what would be right, for anything that is not a quantity from 0 to
    2^63 - 1.
    """
    if isinstance(quantity, str):
        return _parse_text(quantity)
    if isinstance(quantity, bool):
        raise ValueError(f'{str(quantity).lower()} is not a quantity; write a number such as 4 or "500m"')  # noqa: TRY004 - one kind of error for callers
    if isinstance(quantity, float):
        # repr is the shortest text that means this float: 0.1 is a tenth, as its writer meant it.
        return _parse_text(repr(quantity))
    return _bounded(Fraction(quantity), str(quantity))


def amount(resource: str, quantity: Quantity, *, round_up: bool = True) -> int:
    """A quantity of `resource` in the planner's unit: millicores for cpu, bytes or pieces for all others.

    Round up what is requested or used, down (`round_up=False`) what is offered or allowed. Raises ValueError like
    `parse_quantity`.
    """
    if isinstance(quantity, str):
        return _amount_of_text(resource, quantity, round_up)
    return _rounded(resource, parse_quantity(quantity), str(quantity), round_up=round_up)


def format_quantity(resource: str, amount: int) -> str:
    """The way Kubernetes writes `amount` (millicores, bytes, pieces): "4", "500m", "1Gi", "1536Mi"; `amount()` reads
    it back unchanged."""
    if resource == CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if amount and _is_bytes(resource):
        for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
            whole, rest = divmod(amount, int(_SUFFIXES[suffix]))
            if not rest:
                return f"{whole}{suffix}"
    return str(amount)


def format_quantities(amounts: Iterable[tuple[str, int]]) -> dict[str, str]:
    return {resource: format_quantity(resource, amount) for resource, amount in amounts}


def resource_words(resource: str) -> str:
    """Return what people call a resource: "cpu", "volume attachments of ebs.csi.aws.com"."""
    driver = resource.removeprefix(ATTACHABLE_VOLUMES)
    return resource if driver == resource else f"volume attachments of {driver}"


def amount_words(resource: str, amount: int) -> str:
    """Return an amount with its resource: "4 cpu", "1 node", "3 pods", "2 volume attachments of ebs.csi.aws.com"."""
    if resource in ("nodes", "pods"):
        return pluralize(amount, resource.removesuffix("s"))
    return f"{format_quantity(resource, amount)} {resource_words(resource)}"


def pluralize(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 node", "2,000 nodes"; `many` where that is no "s" more."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many others there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _is_bytes(resource: str) -> bool:
    return resource in (MEMORY, "ephemeral-storage", "storage") or resource.startswith("hugepages-")


@lru_cache(maxsize=4096)  # a thousand pods repeat a handful of texts
def _amount_of_text(resource: str, text: str, round_up: bool) -> int:
    return _rounded(resource, _parse_text(text), text, round_up=round_up)


def _shown(text: str) -> str:
    return json.dumps(text[:_LONGEST_TEXT], ensure_ascii=False)


def _rounded(resource: str, value: Fraction, text: str, *, round_up: bool) -> int:
    units = value * 1000 if resource == CPU else value
    whole = -(-units.numerator // units.denominator) if round_up else units.numerator // units.denominator
    if whole > LARGEST_AMOUNT:
        raise ValueError(f"{_shown(text)} is out of range: {resource} is counted in 64 bits")
    return whole


def _parse_text(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise ValueError(
            f"{_shown(text)} is not a quantity; write a number with an optional suffix "
            '(m, k, M, G, T, Ki, Mi, Gi, Ti, ...), such as "500m" or "1.5Gi"',
        )
    exponent = match["exponent"]
    if exponent is not None and abs(int(exponent)) > _LARGEST_EXPONENT:
        raise ValueError(f"{_shown(text)} is out of range: its exponent is beyond {_LARGEST_EXPONENT}")
    scale = _SUFFIXES[match["suffix"]] if exponent is None else Fraction(10) ** int(exponent)
    # Fraction reads neither "1." nor ".5" in every version; a padded number it does.
    whole, _, part = match["number"].partition(".")
    value = Fraction(f"{whole or '0'}.{part or '0'}") * scale
    return _bounded(-value if match["sign"] == "-" else value, text)


def _bounded(value: Fraction, text: str) -> Fraction:
    if value < 0:
        raise ValueError(f"{_shown(text)} is negative; a quantity is 0 or more")
    if value > LARGEST_AMOUNT:
        raise ValueError(f"{_shown(text)} is out of range: the largest quantity is 2^63 - 1")
    return value
