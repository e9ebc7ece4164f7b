"""Gangs that ask for one topology domain."""

from __future__ import annotations

from dataclasses import replace

from cagrpc.api.core import topology
from solver.model import PodSet, PodSpec

RACK = "example.com/rack"


def in_one_domain(name: str, spec: PodSpec, count: int, *keys: str, priority: int = 0) -> PodSet:
    """Return a gang of so many equal pods that is to be in one domain of each of these keys; of the rack's without
    any."""
    close, labels = topology.in_one_domain(spec, dict(spec.labels), name, keys or (RACK,))
    labelled = replace(close, labels=tuple(sorted(labels.items())))
    return PodSet(f"ns/{name}", labelled, count, priority, gang=name)
