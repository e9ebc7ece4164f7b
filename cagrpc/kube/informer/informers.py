"""What a process follows, as readiness, metrics and people are told of it: reflectors, with what their sinks did not
take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from cagrpc.kube.informer.reflector import Reflector


@dataclass(frozen=True, slots=True)
class Informer:
    """One followed resource. Where it is not `needed` it is done without as long as it cannot be listed."""

    reflector: Reflector[Any]
    needed: bool = True
    refused: Sized = ()
    """What the sink could not take."""

    @property
    def name(self) -> str:
        return self.reflector.name

    @property
    def still_to_come(self) -> str:
        """Why it has not been listed once yet; empty where it has, or is done without."""
        reflector = self.reflector
        if reflector.synced or (reflector.problem and not self.needed):
            return ""
        return reflector.problem or f"the list of {self.name} is still to come"

    @property
    def left_out(self) -> int:
        """How many objects are there and cannot be read or taken."""
        return len(self.reflector.left_out) + len(self.refused)


def still_to_come(informers: Iterable[Informer]) -> str:
    """Why not all has been listed once; of several the first that is needed. Empty from then on: what is not followed
    any more is known as it was last."""
    in_order = sorted(informers, key=lambda each: not each.needed)
    return next((why for each in in_order if (why := each.still_to_come)), "")


def told(informers: Iterable[Informer]) -> Iterator[str]:
    """A line for each, as the `/readyz?verbose` of Kubernetes' components has them."""
    for each in informers:
        why, problem = each.still_to_come, each.reflector.problem
        late = f", not followed for now: {problem}" if each.reflector.synced else f", done without: {problem}"
        left_out = f", {each.left_out} left out" if each.left_out else ""
        yield f"[-]{each.name} failed: {why}" if why else f"[+]{each.name} ok{late if problem else ''}{left_out}"


def not_followed(informers: Iterable[Informer]) -> Mapping[str, str]:
    """Of what is known only as it was last, or not at all, why; by resource."""
    return {each.name: each.reflector.problem for each in informers if each.reflector.problem}


def left_out(informers: Iterable[Informer]) -> Mapping[str, int]:
    """By resource; the most of those who follow the same one."""
    found: dict[str, int] = {}
    for each in informers:
        found[each.name] = max(each.left_out, found.get(each.name, 0))
    return found
