"""Nodes, and what the pods on them use, updated pod by pod. Not thread-safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from cagrpc.api.core.nodes import INSTANCE_TYPE, UNSCHEDULABLE, NodeFacts, left
from cagrpc.api.core.observed_labels import PodProjection
from cagrpc.api.core.selectors import LabelProjection
from cagrpc.api.core.volume_binding import with_attachments, without_attachments
from cagrpc.api.core.volumes import Attachment
from cagrpc.cluster.state import ClusterNode
from cagrpc.cluster.view.classes import EquivalenceClass
from cagrpc.cluster.view.objects import ObservedNode, PodStage
from solver.model import ATTACHABLE_VOLUMES, PODS, Labels, Node, PodSpec, RunningPods
from solver.model.eligibility import why_not_eligible


class NodeUse:
    """A node's pods by class. It may be known before its Node is, and after."""

    __slots__ = (
        "_made",
        "_made_with",
        "_volumes",
        "attachments",
        "daemons",
        "fixed",
        "limits",
        "movable",
        "name",
        "seen",
        "used",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: ObservedNode | None = None
        self.used: dict[str, int] = {}
        self.movable: dict[EquivalenceClass, int] = {}
        self.fixed: dict[EquivalenceClass, int] = {}
        self.daemons: dict[EquivalenceClass, int] = {}
        """Still to be bound."""
        self.limits: Mapping[str, int] | None = None
        """How many volumes each driver may attach, by its CSINode; None without one."""
        self.attachments: Counter[tuple[str, str]] = Counter()
        """Volumes that a VolumeAttachment keeps here."""
        self._volumes: Counter[tuple[str, str]] = Counter()
        """Volumes of its pods, with the number of these: driver and volume."""
        self._made: ClusterNode | None = None
        self._made_with: tuple[object, ...] = ()

    @property
    def unknown(self) -> bool:
        known = self.seen or self.limits is not None or self.attachments
        return not (known or self.movable or self.fixed or self.daemons)

    def add(self, of: EquivalenceClass, stage: PodStage, pods: int) -> None:
        """Add so many pods, or remove them."""
        self._made = None
        if stage is not PodStage.DAEMON:
            _use(self.used, of, pods)
        counts = {PodStage.MOVABLE: self.movable, PodStage.DAEMON: self.daemons}.get(stage, self.fixed)
        counts[of] = counts.get(of, 0) + pods
        if not counts[of]:
            del counts[of]

    def attach(self, volumes: Iterable[tuple[str, str]], pods: int) -> None:
        """Add so many pods that use these volumes, or remove them."""
        self._made = None
        for each in volumes:
            self._volumes[each] += pods
            if not self._volumes[each]:
                del self._volumes[each]

    def limit(self, limits: Mapping[str, int] | None) -> None:
        self.limits = limits
        self._made = None

    def keep(self, attached: tuple[str, str], count: int) -> None:
        """Add a VolumeAttachment, or remove it."""
        self._made = None
        self.attachments[attached] += count
        if not self.attachments[attached]:
            del self.attachments[attached]

    def know(self, seen: ObservedNode | None) -> None:
        self.seen = seen
        self._made = None

    def shown(
        self, seen: ObservedNode, by: PodProjection, sight: LabelProjection, drivers: frozenset[str]
    ) -> ClusterNode:
        """Return the node as planning reads it, cached until something of it changes. `drivers` are those that attach
        volumes of any pod."""
        if self._made is not None and all(
            one is other for one, other in zip(self._made_with, (by, sight, drivers), strict=True)
        ):
            return self._made
        facts = seen.facts
        used, daemons = self._with_daemons(facts)
        attached = Counter(driver for driver, _ in {**self._volumes, **self.attachments})
        used = {**used, **{f"{ATTACHABLE_VOLUMES}{driver}": attached[driver] for driver in drivers}}
        offered = {**facts.allocatable, **with_attachments({}, drivers, self.limits or {})}
        running: dict[PodSpec, int] = {}
        for counts in (self.movable, self.fixed, daemons):
            for of, count in counts.items():
                spec = of.runs(by)
                if spec is not None:
                    running[spec] = running.get(spec, 0) + count
        self._made_with = by, sight, drivers
        self._made = ClusterNode(
            node=Node(
                facts.name,
                left(offered, used),
                facts.labels,
                facts.taints,
                _as_pods(running),
                facts.allocatable,
            ),
            provider_id=seen.provider_id,
            ready=seen.ready,
            held=seen.held,
            movable=_whole(self.movable, sight),
            scale_down_disabled=seen.scale_down_disabled,
            scale_down_disabled_by_us=seen.scale_down_disabled_by_us,
            attach_limits=self.limits,
            created_at_seconds=seen.created_at_seconds,
            do_not_disrupt=seen.do_not_disrupt,
            conditions=seen.conditions,
        )
        return self._made

    def _with_daemons(self, facts: NodeFacts) -> tuple[dict[str, int], dict[EquivalenceClass, int]]:
        """Return what is used once unbound DaemonSet pods that fit are bound, and how many of each class fit. A
        scheduler binds no others, however large the requests that a tenant writes."""
        if not self.daemons:
            return self.used, self.daemons
        used, bound = dict(self.used), Counter[EquivalenceClass]()
        for of, count in self.daemons.items():
            requests = {**without_attachments(of.key.shape.requests), PODS: 1}
            if why_not_eligible(of.key.shape.spec, facts.labels, facts.taints, facts.name) is not None:
                continue
            for _ in range(count):
                if any(used.get(name, 0) + asked > facts.allocatable.get(name, 0) for name, asked in requests.items()):
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


def _as_pods(counts: Mapping[PodSpec, int]) -> tuple[RunningPods, ...]:
    return tuple(RunningPods(spec, count) for spec, count in counts.items())


class NodeTable:
    """The table of nodes, by name."""

    def __init__(self) -> None:
        self._uses: dict[str, NodeUse] = {}
        self._order: list[NodeUse] | None = None
        self._ready: frozenset[str] | None = None
        self._held: dict[str, str] | None = None
        self._limits_of_types: dict[str, Mapping[str, int]] = {}
        self.came_or_went: Callable[[str], None] = lambda _: None
        """Called with the name of each Node that was added or deleted."""

    def keys(self) -> Iterable[str]:
        return [use.name for use in self._uses.values() if use.seen]

    def put(self, seen: ObservedNode) -> None:
        use = self.use(seen.key)
        if use.seen == seen:
            return  # a heartbeat
        came = use.seen is None
        if came:
            self._order = None
        use.know(seen)
        self._ready = self._held = None
        if came:
            self.came_or_went(seen.key)

    def drop(self, name: str) -> None:
        use = self._uses.get(name)
        if use is None or use.seen is None:
            return
        use.know(None)
        self._order = self._ready = self._held = None
        self.came_or_went(name)
        self.forget(use)

    def there(self, name: str) -> bool:
        use = self._uses.get(name)
        return use is not None and use.seen is not None

    def use(self, name: str) -> NodeUse:
        found = self._uses.get(name)
        if found is None:
            found = self._uses[name] = NodeUse(name)
        return found

    def forget(self, use: NodeUse) -> None:
        """Drop the entry if neither a Node nor pods are left."""
        if use.unknown:
            self._uses.pop(use.name, None)

    def ready(self) -> AbstractSet[str]:
        """Return provider ids of Ready nodes."""
        if self._ready is None:
            seen = (use.seen for use in self._uses.values())
            self._ready = frozenset(each.provider_id for each in seen if each and each.ready and each.provider_id)
        return self._ready

    def lacking_labels(self, wanted: Mapping[str, AbstractSet[str]]) -> AbstractSet[str]:
        """Return those of these provider ids whose Node is there without one of these labels."""
        seen = (use.seen for use in self._uses.values())
        return {
            each.provider_id
            for each in seen
            if each and not wanted.get(each.provider_id, frozenset()) <= each.facts.labels.keys()
        }

    def held(self) -> Mapping[str, str]:
        """Return provider ids and names of nodes with our start-up taint."""
        if self._held is None:
            seen = (use.seen for use in self._uses.values())
            self._held = {each.provider_id: each.key for each in seen if each and each.held and each.provider_id}
        return self._held

    def held_where(self, condition: Callable[[str, Labels], bool]) -> AbstractSet[str]:
        """Return provider ids of held nodes of whose name and labels the condition is true."""
        held = ((provider_id, self._uses[name].seen) for provider_id, name in self.held().items())
        return {provider_id for provider_id, seen in held if seen and condition(seen.key, seen.facts.labels)}

    def held_at(self, name: str) -> int:
        """Return the index of our start-up taint in this node's taints; -1 without it."""
        use = self._uses.get(name)
        return -1 if use is None or use.seen is None else use.seen.held_at

    def is_cordoned(self, name: str) -> bool:
        """Return whether a node is there and takes no further pods."""
        use = self._uses.get(name)
        return use is not None and use.seen is not None and UNSCHEDULABLE in use.seen.facts.taints

    def dedicated(self) -> frozenset[str]:
        """Return the names of held nodes that let in the pods planned there."""
        held = ((name, self._uses[name].seen) for name in self.held().values())
        return frozenset(name for name, seen in held if seen and seen.dedicated)

    def names(self) -> Mapping[str, str]:
        """Return the names of all nodes, by provider id."""
        seen = (use.seen for use in self._uses.values())
        return {each.provider_id: each.key for each in seen if each and each.provider_id}

    def movable(self) -> Iterable[tuple[str, Mapping[EquivalenceClass, int]]]:
        """Yield the names of all nodes, each with the pods that would have to go elsewhere if it went."""
        return ((use.name, use.movable) for use in self._uses.values() if use.seen)

    def fixed(self, sight: LabelProjection) -> Mapping[str, tuple[RunningPods, ...]]:
        """Return the pods that go with their nodes, or come to them, by the name of the node, with all that constraints
        can see of them."""
        return {use.name: _whole(use.fixed, sight) for use in self._uses.values() if use.seen}

    def shown(
        self, by: PodProjection, sight: LabelProjection, drivers: frozenset[str] = frozenset()
    ) -> tuple[ClusterNode, ...]:
        """Return all nodes, by name."""
        if self._order is None:
            self._order = sorted((use for use in self._uses.values() if use.seen), key=lambda use: use.name)
        return tuple(use.shown(use.seen, by, sight, drivers) for use in self._order if use.seen)

    def limits_of_types(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many volumes each driver may attach, by instance type; the least of its nodes, or of the last."""
        found: dict[str, dict[str, int]] = {}
        for use in self._uses.values():
            kind = use.seen.facts.labels.get(INSTANCE_TYPE) if use.seen else None
            if kind and use.limits:
                of = found.setdefault(kind, {})
                of.update({driver: min(count, of.get(driver, count)) for driver, count in use.limits.items()})
        self._limits_of_types.update(found)
        return dict(self._limits_of_types)

    def put_limits(self, name: str, limits: Mapping[str, int] | None) -> None:
        """Set how many volumes each driver may attach, by the node's CSINode; None without one."""
        use = self.use(name)
        use.limit(limits)
        self.forget(use)

    def put_attachment(self, before: Attachment | None, after: Attachment | None) -> None:
        """Set a VolumeAttachment."""
        for each, count in ((before, -1), (after, 1)):
            if each is not None and each.volume and each.driver:
                use = self.use(each.node)
                use.keep((each.driver, each.volume), count)
                self.forget(use)
