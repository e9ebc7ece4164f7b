"""What a process follows of a cluster, as readiness, `/status` and metrics report it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol


class SyncedResource(Protocol):
    """A resource that is listed and then watched, in a thread of its own."""

    @property
    def name(self) -> str:
        """Return its name as in `kubectl api-resources`: `pods`, `deployments.apps`."""
        ...

    @property
    def needed(self) -> bool:
        """Return whether nothing is ready before it has been listed; others are done without as long as they cannot
        be."""
        ...

    @property
    def synced(self) -> bool:
        """Return whether it has been listed once."""
        ...

    @property
    def problem(self) -> str | None:
        """Return why changes are not seen now."""
        ...

    @property
    def left_out(self) -> int:
        """Return how many objects are there and cannot be read or taken."""
        ...

    def start(self) -> None:
        """Follow it from now on."""
        ...

    def stop(self, wait_seconds: float) -> None:
        """Follow it no longer. May be repeated."""
        ...


def why_not_synced(resource: SyncedResource) -> str:
    """Return why it has not been listed once yet; empty where it has, or is done without."""
    if resource.synced or (resource.problem and not resource.needed):
        return ""
    return resource.problem or f"the list of {resource.name} is still to come"


def still_to_come(resources: Iterable[SyncedResource]) -> str:
    """Return why not all has been listed once; of several the first that is needed. Empty from then on: what is not
    followed any more is known as it was last."""
    in_order = sorted(resources, key=lambda each: not each.needed)
    return next((why for each in in_order if (why := why_not_synced(each))), "")


def readiness_lines(resources: Iterable[SyncedResource]) -> Iterator[str]:
    """Yield a line for each, as the `/readyz?verbose` of Kubernetes' components has them."""
    for each in resources:
        why, problem = why_not_synced(each), each.problem
        late = f", not followed for now: {problem}" if each.synced else f", done without: {problem}"
        left_out = f", {each.left_out} left out" if each.left_out else ""
        yield f"[-]{each.name} failed: {why}" if why else f"[+]{each.name} ok{late if problem else ''}{left_out}"


def not_followed(resources: Iterable[SyncedResource]) -> Mapping[str, str]:
    """Return, of what is known only as it was last or not at all, why; by resource."""
    return {each.name: each.problem for each in resources if each.problem}


def unreadable(resources: Iterable[SyncedResource]) -> Mapping[str, int]:
    """Return how many objects are left out, by resource; the most of those who follow the same one."""
    found: dict[str, int] = {}
    for each in resources:
        found[each.name] = max(each.left_out, found.get(each.name, 0))
    return found
