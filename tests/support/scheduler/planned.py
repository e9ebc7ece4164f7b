"""What cagrpc makes of a small cluster: its files, read as `cagrpc plan` does, planned and checked."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from cagrpc.api.devices.objects import Device
from cagrpc.cluster.documents import DocumentReader
from cagrpc.config.files import load_devices, load_provisioners
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.offline.inputs import problem_of, read_files
from solver import Budget, Plan, solve
from tests.support.scheduler.cluster import World

_BUDGET = Budget(deterministic_seconds=10.0)
_MOST_WAYS = 24


@dataclass(frozen=True)
class Planned:
    plan: Plan
    pods: Mapping[int, list[str]]
    """By class: the pods that no plan tells apart."""

    @property
    def served(self) -> int:
        return sum(len(each) for each in self.pods.values()) - sum(each.count for each in self.plan.unplaced)

    @property
    def reasons(self) -> dict[str, str]:
        """By pod that may be left out, why."""
        return {pod: "; ".join(each.reasons) for each in self.plan.unplaced for pod in self.pods[each.pod_class]}

    def assignments(self) -> Iterator[dict[str, str]]:
        """Yield who goes where, in all ways that the plan leaves open, or a number of them."""
        places: defaultdict[int, list[str]] = defaultdict(list)
        opened: defaultdict[str, int] = defaultdict(int)
        for new in self.plan.nodes:
            for _ in range(new.count):
                name = f"new-{new.node_group}-{opened[new.node_group]}"
                opened[new.node_group] += 1
                for index, count in new.pods.items():
                    places[index] += [name] * count
        for standing in self.plan.existing:
            for index, count in standing.pods.items():
                places[index] += [standing.node] * count
        found: list[dict[str, str]] = [{}]
        for index, where in places.items():
            ways = sorted({tuple(zip(some, where, strict=True)) for some in permutations(self.pods[index], len(where))})
            found = [{**each, **dict(way)} for each in found for way in ways][:_MOST_WAYS]
        yield from found


def planned(world: World, directory: Path) -> Planned:
    dump, provisioners = directory / "dump.json", directory / "provisioners.yaml"
    dump.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(world.objects)}))
    provisioners.write_text(json.dumps([{"name": "all", "node_groups": list(world.groups)}]))
    catalogue = embedded_catalogue()
    expanded = load_provisioners([provisioners], catalogue)
    of_groups: Mapping[str, tuple[Device, ...]] = {}
    if world.devices:
        devices = directory / "devices.yaml"
        devices.write_text(json.dumps({"devices": list(world.devices)}))
        of_groups = load_devices(devices, expanded.groups, catalogue)
    reader = DocumentReader()
    read_files([dump], [], reader)
    found = reader.read(of_groups)
    assert not reader.problems, reader.problems
    problem = problem_of(found, expanded.groups, expanded.limits)
    plan = solve(problem, _BUDGET)
    pods: defaultdict[int, list[str]] = defaultdict(list)
    numbers = {each.spec: each.index for each in plan.pod_classes}
    for each in found.state.waiting:
        pods[numbers[found.state.devices.left_out(each.pod_set.spec)]] += (pod.name for pod in each.pods)
    return Planned(plan, pods)
