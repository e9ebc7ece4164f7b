"""Kubernetes' feature gates that change what objects mean. They are the process's, as in Kubernetes' own programs
(`utilfeature.DefaultFeatureGate`), and are set before anything is read: what was read once is remembered."""

from __future__ import annotations

from collections.abc import Collection

from cagrpc.errors import InvalidInput, shown

TAINT_TOLERATION_COMPARISON_OPERATORS = "TaintTolerationComparisonOperators"
"""The operators `Gt` and `Lt` of tolerations; alpha in Kubernetes 1.35 and 1.36, and off."""
KNOWN = (TAINT_TOLERATION_COMPARISON_OPERATORS,)

_enabled: set[str] = set()


def named(names: Collection[str]) -> frozenset[str]:
    """Return the gates of these names. Raises InvalidInput for one that is not known."""
    for name in names:
        if name not in KNOWN:
            raise InvalidInput(f"--feature-gate: found {shown(name)}, expected {', '.join(KNOWN)}")
    return frozenset(names)


def enable(gates: frozenset[str]) -> None:
    """Enable these gates, and no others."""
    _enabled.clear()
    _enabled.update(gates)


def is_enabled(gate: str) -> bool:
    return gate in _enabled
