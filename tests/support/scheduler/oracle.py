"""Whether the kube-scheduler binds pods where a plan puts them: in whatever order it takes them, and whatever volumes
and devices it gives to each. Exhaustive, for a handful of pods and nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tests.support.scheduler.cluster import Machine, World, cpu_of, machines
from tests.support.scheduler.devices import DeviceAllocations, Given
from tests.support.scheduler.volumes import Bound, Placed, Volumes


@dataclass(frozen=True)
class _State:
    placed: Placed
    bound: Bound
    given: Given


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self.machines = machines(world)
        self._volumes = Volumes(world)
        self._devices = DeviceAllocations(world)
        self.pods = world.waiting
        running = {name: pod for name, pod in world.of("Pod").items() if name not in self.pods}
        self._cpu = {name: cpu_of(pod) for name, pod in world.of("Pod").items()}
        placed = frozenset((name, pod["spec"]["nodeName"]) for name, pod in running.items())
        self.start = _State(placed, self._volumes.start(), self._devices.start())
        self._after = lru_cache(maxsize=None)(self._bind)

    def _bind(self, pod: str, node: str, state: _State) -> tuple[_State, ...]:
        return tuple(self._binds(pod, self.machines[node], state))

    def _binds(self, pod: str, node: Machine, state: _State) -> Iterator[_State]:
        spec = self.pods[pod]["spec"]
        running = [other for other, where in state.placed if where == node.name]
        used = sum(map(self._cpu.__getitem__, running))
        wanted = spec.get("nodeSelector", {})
        if used + self._cpu[pod] > node.cpu or not wanted.items() <= node.labels.items():
            return
        allocations = set(self._devices.place(pod, node, running, state.given))
        for bound in self._volumes.place(pod, node, state.placed, state.bound) if allocations else ():
            for given in allocations:
                yield _State(state.placed | {(pod, node.name)}, bound, given)

    def refuses(self, assignment: Mapping[str, str]) -> str:
        """Return how a pod cannot be bound where it is to go, though others have been bound before it; empty where that
        cannot happen."""
        known: set[tuple[_State, frozenset[str]]] = set()

        def refused(state: _State, left: frozenset[str]) -> str:
            if (state, left) in known:
                return ""
            for pod in sorted(left):
                after = self._after(pod, assignment[pod], state)
                if not after:
                    return f"{pod} on {assignment[pod]} with {sorted(state.bound)} {sorted(state.given)}"
                for each in after:
                    if why := refused(each, left - {pod}):
                        return f"{pod}; {why}"
            known.add((state, left))
            return ""

        return refused(self.start, frozenset(assignment))

    def serving(self, more_than: int, without: Collection[str] = ()) -> Mapping[str, str] | None:
        """Return an assignment of more pods than this that the scheduler never refuses; None where there is none. Some
        pods may be left out of it."""
        pods = sorted(self.pods.keys() - set(without))
        able = {pod: [node for node in self.machines if not self.refuses({pod: node})] for pod in pods}
        names = sorted((pod for pod in able if able[pod]), key=lambda pod: len(able[pod]))
        if len(names) <= more_than:
            return None

        def search(position: int, found: dict[str, str]) -> Mapping[str, str] | None:
            if len(found) > more_than:
                return found
            if len(found) + len(names) - position <= more_than:
                return None
            pod = names[position]
            for node in self._distinct(able[pod], found):
                longer = {**found, pod: node}
                if not self.refuses(longer) and (better := search(position + 1, longer)) is not None:
                    return better
            return search(position + 1, found)

        return search(0, {})

    def _distinct(self, nodes: list[str], found: Mapping[str, str]) -> Iterator[str]:
        """Yield the nodes, of those that a group would still open the first only."""
        opened = set()
        for node in nodes:
            group = self.machines[node].group
            if group and node not in found.values():
                if group in opened:
                    continue
                opened.add(group)
            yield node
