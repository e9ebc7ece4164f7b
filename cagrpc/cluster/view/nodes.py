"""Nodes, and what the pods on them use, updated pod by pod. Not thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.api.core.nodes import INSTANCE_TYPE, UNSCHEDULABLE, left
from cagrpc.api.core.schedulers import EXPENDABLE_BELOW
from cagrpc.api.core.selectors import LabelProjection
from cagrpc.api.core.volume_binding import with_attachments, without_attachments
from cagrpc.api.core.volumes import Attachment, Volume
from cagrpc.cluster.state import ClusterNode
from cagrpc.cluster.view.classes import EquivalenceClass, Sight, count_in
from cagrpc.cluster.view.objects import ObservedNode, PodStage
from solver.model import ATTACHABLE_VOLUMES, PODS, Labels, Node, PodSpec, RunningPods, Taint
from solver.model.eligibility import why_not_eligible


class NodeUse:
    """A node's pods by class. It may be known before its Node is, and after."""

    __slots__ = (
        "_changed",
        "_expendable_below",
        "_volumes",
        "attachments",
        "daemons",
        "ending",
        "fixed",
        "limits",
        "movable",
        "name",
        "seen",
        "used",
    )

    def __init__(self, name: str, changed: set[str], expendable_below: int) -> None:
        """`changed` gets its name with each change. Pods of a priority below `expendable_below` are expendable."""
        self.name = name
        self._changed = changed
        self._expendable_below = expendable_below
        self.seen: ObservedNode | None = None
        self.used: dict[str, int] = {}
        self.movable: dict[EquivalenceClass, int] = {}
        self.fixed: dict[EquivalenceClass, int] = {}
        self.ending: dict[EquivalenceClass, int] = {}
        self.daemons: dict[EquivalenceClass, int] = {}
        """Still to be bound."""
        self.limits: Mapping[str, int] | None = None
        """How many volumes each driver may attach, by its CSINode; None without one."""
        self.attachments: Counter[tuple[str, str]] = Counter()
        """Volumes that a VolumeAttachment keeps here."""
        self._volumes: Counter[tuple[str, str]] = Counter()
        """Volumes of its pods, with the number of these: driver and volume."""

    @property
    def unknown(self) -> bool:
        known = self.seen or self.limits is not None or self.attachments
        return not (known or self.movable or self.fixed or self.ending or self.daemons)

    def add(self, of: EquivalenceClass, stage: PodStage, pods: int) -> None:
        """Add so many pods, or remove them."""
        self._changed.add(self.name)
        if stage is not PodStage.DAEMON:
            _use(self.used, of, pods)
        by_stage = {PodStage.MOVABLE: self.movable, PodStage.DAEMON: self.daemons, PodStage.ENDING: self.ending}
        counts = by_stage.get(stage, self.fixed)
        count_in(counts, of, pods)
        count_in(of.on_nodes, self.name, pods)

    def attach(self, volumes: Iterable[tuple[str, str]], pods: int) -> None:
        """Add so many pods that use these volumes, or remove them."""
        self._changed.add(self.name)
        for each in volumes:
            count_in(self._volumes, each, pods)

    def limit(self, limits: Mapping[str, int] | None) -> None:
        self.limits = limits
        self._changed.add(self.name)

    def keep(self, attached: tuple[str, str], more: int) -> None:
        """Add a VolumeAttachment, or remove it."""
        self._changed.add(self.name)
        count_in(self.attachments, attached, more)

    def know(self, seen: ObservedNode | None) -> None:
        self.seen = seen
        self._changed.add(self.name)

    def shown(self, seen: ObservedNode, sight: Sight, drivers: frozenset[str]) -> ClusterNode:
        """Return the node as planning reads it. `drivers` are those that attach volumes of any pod."""
        node = seen.bare.node
        used, daemons = self._with_daemons(node)
        attached = Counter(driver for driver, _ in {**self._volumes, **self.attachments})
        used = {**used, **{f"{ATTACHABLE_VOLUMES}{driver}": attached[driver] for driver in drivers}}
        offered = {**node.allocatable, **with_attachments({}, drivers, self.limits or {})}
        running: dict[tuple[PodSpec, bool], int] = {}
        for counts in (self.movable, self.fixed, daemons, self.ending):
            for of, count in counts.items():
                spec = of.runs(sight.seen)
                if spec is not None:
                    key = spec, counts is self.ending
                    running[key] = running.get(key, 0) + count
        return replace(
            seen.bare,
            node=replace(
                node,
                free=left(offered, used),
                running=tuple(RunningPods(spec, count, ending) for (spec, ending), count in running.items()),
                volumes=frozenset((f"{ATTACHABLE_VOLUMES}{driver}", name) for driver, name in self._volumes),
            ),
            movable=_whole(self.movable, sight.labels),
            expendable=_whole(
                {of: count for of, count in self.movable.items() if of.key.priority < self._expendable_below},
                sight.labels,
            ),
            attach_limits=self.limits,
        )

    def _with_daemons(self, node: Node) -> tuple[dict[str, int], dict[EquivalenceClass, int]]:
        """Return what is used once unbound DaemonSet pods that fit are bound, and how many of each class fit. A
        scheduler binds no others, however large the requests that a tenant writes."""
        if not self.daemons:
            return self.used, self.daemons
        used, bound = dict(self.used), Counter[EquivalenceClass]()
        for of, count in self.daemons.items():
            requests = {**without_attachments(of.key.shape.requests), PODS: 1}
            if why_not_eligible(of.key.shape.spec, node.labels, node.taints, node.name) is not None:
                continue
            for _ in range(count):
                if any(used.get(name, 0) + asked > node.allocatable.get(name, 0) for name, asked in requests.items()):
                    break
                _use(used, of, 1)
                bound[of] += 1
        return used, bound


def _use(used: dict[str, int], of: EquivalenceClass, pods: int) -> None:
    for resource, asked in of.key.shape.requests.items():
        used[resource] = used.get(resource, 0) + pods * asked
    used[PODS] = used.get(PODS, 0) + pods


def _whole(counts: Mapping[EquivalenceClass, int], sight: LabelProjection) -> tuple[RunningPods, ...]:
    together: dict[int, tuple[PodSpec, int]] = {}  # equal ones are the same object: hashing them would cost more
    for of, count in counts.items():
        spec = of.whole(sight)
        together[id(spec)] = spec, together.get(id(spec), (spec, 0))[1] + count
    return tuple(RunningPods(spec, count) for spec, count in together.values())


class ShownNodes:
    """All nodes as planning reads them, as of the last update."""

    def __init__(self) -> None:
        self.nodes: tuple[ClusterNode, ...] = ()
        """They are sorted by name."""
        self.sight: Sight | None = None
        self.drivers: frozenset[str] = frozenset()
        self._names: list[str] = []
        self._of: dict[str, ClusterNode] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def update(self, changed: Iterable[tuple[str, NodeUse | None]], sight: Sight, drivers: frozenset[str]) -> None:
        """Make these anew; one that is gone, or is no Node yet, is not shown."""
        self.sight, self.drivers, any_changed = sight, drivers, False
        new: list[str] = []
        for name, use in changed:
            any_changed = True
            if use is not None and use.seen is not None:
                if name not in self._of:
                    new.append(name)
                self._of[name] = use.shown(use.seen, sight, drivers)
            elif self._of.pop(name, None) is not None:
                del self._names[bisect_left(self._names, name)]
        if new:
            self._names = sorted([*self._names, *new])
        if any_changed:
            self.nodes = tuple(map(self._of.__getitem__, self._names))


class NodeTable:
    """The table of nodes, by name."""

    def __init__(
        self, startup_taints: AbstractSet[Taint] = frozenset(), expendable_below: int = EXPENDABLE_BELOW
    ) -> None:
        """Nodes are read without these taints, which they register with and lose. Pods of a priority below
        `expendable_below` are expendable."""
        self._startup_taints = startup_taints
        self._uses: dict[str, NodeUse] = {}
        self._changed: set[str] = set()
        """Names of nodes that have changed since they were shown."""
        self._shown = ShownNodes()
        self._expendable_below = expendable_below
        self._bare: tuple[ClusterNode, ...] | None = None
        self._ready: frozenset[str] | None = None
        self._held: dict[str, str] | None = None
        self._names: dict[str, str] | None = None
        self._limits_of_types: dict[str, Mapping[str, int]] = {}
        self._limits_changed = True
        self._kept: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
        """Node and driver of the VolumeAttachments of each volume."""
        self._disks: dict[str, str] = {}
        """Handles of volumes that are known by others than their names."""
        self.came_or_went: Callable[[str], None] = lambda _: None
        """Called with the name of each Node that was added or deleted."""

    def keys(self) -> Iterable[str]:
        return [use.name for use in self._uses.values() if use.seen]

    def put(self, seen: ObservedNode) -> None:
        node = seen.bare.node
        if not self._startup_taints.isdisjoint(node.taints):
            taints = tuple(each for each in node.taints if each not in self._startup_taints)
            seen = replace(seen, bare=replace(seen.bare, node=replace(node, taints=taints)))
        use = self.use(seen.key)
        if use.seen == seen:
            return  # a heartbeat
        before = use.seen
        use.know(seen)
        self._forget_sums(before, seen)
        if before is None:
            self.came_or_went(seen.key)

    def drop(self, name: str) -> None:
        use = self._uses.get(name)
        if use is None or use.seen is None:
            return
        before = use.seen
        use.know(None)
        self._forget_sums(before, None)
        self.came_or_went(name)
        self.forget(use)

    def _forget_sums(self, before: ObservedNode | None, after: ObservedNode | None) -> None:
        """Forget what no longer holds of what is known of all nodes together."""
        self._bare = None
        ids = [each.bare.provider_id if each else "" for each in (before, after)]
        if ids[0] != ids[1]:
            self._names = None
        if ids[0] != ids[1] or (before and before.bare.ready) is not (after and after.bare.ready):
            self._ready = None
        if ids[0] != ids[1] or (before and before.bare.held) is not (after and after.bare.held):
            self._held = None
        self._limits_changed = True

    def _seen(self, name: str) -> ObservedNode | None:
        use = self._uses.get(name)
        return None if use is None else use.seen

    def there(self, name: str) -> bool:
        return self._seen(name) is not None

    def use(self, name: str) -> NodeUse:
        found = self._uses.get(name)
        if found is None:
            found = self._uses[name] = NodeUse(name, self._changed, self._expendable_below)
        return found

    def forget(self, use: NodeUse) -> None:
        """Drop the entry if neither a Node nor pods are left."""
        if use.unknown:
            self._uses.pop(use.name, None)
            if use.name not in self._shown:
                self._changed.discard(use.name)  # a standby, which shows none, would remember all that ever were

    def bare(self) -> tuple[ClusterNode, ...]:
        """Return all nodes that are there, as if nothing ran on them; the same object until one changes."""
        if self._bare is None:
            self._bare = tuple(use.seen.bare for use in self._uses.values() if use.seen)
        return self._bare

    def ready(self) -> AbstractSet[str]:
        """Return provider ids of Ready nodes."""
        if self._ready is None:
            self._ready = frozenset(each.provider_id for each in self.bare() if each.ready and each.provider_id)
        return self._ready

    def labels(self, wanted: Mapping[str, AbstractSet[str]]) -> Mapping[str, Mapping[str, str]]:
        """Return those of these labels that Nodes have, by provider id; those that are not there are left out."""
        if not wanted:
            return {}
        there = ((each.provider_id, each.node.labels) for each in self.bare() if each.provider_id in wanted)
        return {name: {key: of[key] for key in wanted[name] & of.keys()} for name, of in there}

    def held(self) -> Mapping[str, str]:
        """Return provider ids and names of nodes with our start-up taint."""
        if self._held is None:
            self._held = {each.provider_id: each.node.name for each in self.bare() if each.held and each.provider_id}
        return self._held

    def held_where(self, condition: Callable[[str, Labels], bool]) -> AbstractSet[str]:
        """Return provider ids of held nodes of whose name and labels the condition is true."""
        held = ((provider_id, self._seen(name)) for provider_id, name in self.held().items())
        return {provider_id for provider_id, seen in held if seen and condition(seen.key, seen.bare.node.labels)}

    def held_at(self, name: str) -> int:
        """Return the index of our start-up taint in this node's taints; -1 without it."""
        seen = self._seen(name)
        return -1 if seen is None else seen.held_at

    def is_cordoned(self, name: str) -> bool:
        """Return whether a node is there and takes no further pods."""
        seen = self._seen(name)
        return seen is not None and UNSCHEDULABLE in seen.bare.node.taints

    def dedicated(self) -> frozenset[str]:
        """Return the names of held nodes that let in the pods planned there."""
        return frozenset(name for name in self.held().values() if (seen := self._seen(name)) and seen.dedicated)

    def names(self) -> Mapping[str, str]:
        """Return the names of all nodes, by provider id."""
        if self._names is None:
            self._names = {each.provider_id: each.node.name for each in self.bare() if each.provider_id}
        return self._names

    def movable(self, names: Iterable[str]) -> Iterable[tuple[str, Mapping[EquivalenceClass, int]]]:
        """Yield those of these nodes that are there, each with the pods that would have to go elsewhere if it went."""
        return ((name, self._uses[name].movable) for name in names if self.there(name))

    def fixed(self, sight: LabelProjection) -> Mapping[str, tuple[RunningPods, ...]]:
        """Return the pods that go with their nodes, or come to them, by the name of the node, with all that constraints
        can see of them."""
        return {
            use.name: _whole(Counter(use.fixed) + Counter(use.ending) if use.ending else use.fixed, sight)
            for use in self._uses.values()
            if use.seen
        }

    def shown(
        self,
        sight: Sight,
        drivers: frozenset[str],
        differing: Callable[[Sight, Sight], AbstractSet[EquivalenceClass]],
    ) -> tuple[ClusterNode, ...]:
        """Return all nodes, by name. `differing` returns the classes that look otherwise by one sight than by
        another."""
        shown, self._shown = self._shown, ShownNodes()  # what raises in between has all made anew
        changed = set(self._changed)
        self._changed.clear()
        if shown.sight is None or drivers != shown.drivers:
            changed.update(self._uses)
        elif shown.sight != sight:
            changed.update(name for of in differing(shown.sight, sight) for name in of.on_nodes)
        shown.update(((name, self._uses.get(name)) for name in changed), sight, drivers)
        self._shown = shown
        return shown.nodes

    def limits_of_types(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many volumes each driver may attach, by instance type; the least of its nodes, or of the last."""
        if not self._limits_changed:
            return self._limits_of_types
        found: dict[str, dict[str, int]] = {}
        for use in self._uses.values():
            kind = use.seen.bare.node.labels.get(INSTANCE_TYPE) if use.seen else None
            if kind and use.limits:
                of = found.setdefault(kind, {})
                of.update({driver: min(count, of.get(driver, count)) for driver, count in use.limits.items()})
        self._limits_of_types = {**self._limits_of_types, **found}
        self._limits_changed = False
        return self._limits_of_types

    def put_limits(self, name: str, limits: Mapping[str, int] | None) -> None:
        """Set how many volumes each driver may attach, by the node's CSINode; None without one."""
        use = self.use(name)
        use.limit(limits)
        self._limits_changed = True
        self.forget(use)

    def put_attachment(self, _key: str, before: Attachment | None, after: Attachment | None) -> None:
        """Set a VolumeAttachment."""
        for each, count in ((before, -1), (after, 1)):
            if each is not None and each.volume and each.driver:
                kept = self._kept[each.volume]
                kept[each.node, each.driver] += count
                if not +kept:
                    del self._kept[each.volume]
                self._keep(each.node, (each.driver, self._disks.get(each.volume, each.volume)), count)

    def put_volume(self, name: str, _before: Volume | None, after: Volume | None) -> None:
        """Set by which handle a volume is known, of which there may be VolumeAttachments."""
        disks = self._disks.pop(name, name), name if after is None else after.disk
        if disks[1] != name:
            self._disks[name] = disks[1]
        for (node, driver), pods in self._kept.get(name, {}).items() if disks[0] != disks[1] else ():
            self._keep(node, (driver, disks[0]), -pods)
            self._keep(node, (driver, disks[1]), pods)

    def _keep(self, node: str, attached: tuple[str, str], count: int) -> None:
        use = self.use(node)
        use.keep(attached, count)
        self.forget(use)
