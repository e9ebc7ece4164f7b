"""The ledger of episodes: what the cluster shows from moment to moment becomes episodes. It opens one when pods wait,
takes pods that come later into it as further waves, sees which nodes come, and closes it. There is one at a time, so
that every node that comes is one episode's. It reads no clock and asks nothing: what is seen is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from statistics import median

from cagrpc.cluster.node_groups import group_of
from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, WaitingPods
from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.episodes.model import (
    BEFORE_SECONDS,
    Ended,
    Episode,
    GroupNodes,
    KnownGroups,
    Outcome,
    RecordedState,
    ScaleUp,
    Wave,
)
from cagrpc.controllers.planning.problem import beside
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.model import PodKey
from cagrpc.fleet.prices import NodePrices, place_of
from cagrpc.fleet.provisioners import pool_of
from solver.model import NodeGroup
from solver.model.quantities import pluralize, some_of

GATHERING = PlannerSettings()
"""Pods are gathered as the planner loop gathers them (`idle`, `window`)."""
SETTLED_SECONDS = 30.0
"""How long after the last pod got its node an episode ends: nodes that come for the same pods are its own."""
QUIET_SECONDS = 600.0
"""How long nothing happens before an episode ends with pods that still wait."""
LONGEST_SECONDS = 1800.0
"""An episode ends then, whatever happens. Pods that have waited for less than `QUIET_SECONDS` are the next one's."""
MOST_PODS = 5_000
MOST_WAVES = 60
"""With so many an episode ends as well."""
MOST_NODES = 2_000
_READY = "Ready"
_MOST_SCALE_UPS = 100
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ClusterMoment:
    """The cluster at one moment."""

    at_seconds: float
    state: ClusterState
    pending: AbstractSet[str] = frozenset()
    """Of the pods of the episode, those that have no node."""
    bound: AbstractSet[str] = frozenset()
    """Of the pods of the episode, those that have one."""
    known: KnownGroups = field(default_factory=KnownGroups)
    sizes: Mapping[str, GroupSize] = field(default_factory=dict)
    """What the autoscaler's status says of its groups."""
    scale_ups: Sequence[ScaleUp] = ()
    """What its Events say."""


@dataclass(frozen=True, slots=True)
class ClosedEpisode:
    """An episode that is still to be planned."""

    episode: Episode
    """Without the plan."""
    state: RecordedState
    estimated: frozenset[str]
    why_not: str = ""
    """Why it cannot be planned, for people; empty where it can."""


@dataclass
class _Gathering:
    since_seconds: float
    last_seconds: float
    pods: AbstractSet[PodKey]


class _OpenEpisode:
    def __init__(self, seen: ClusterMoment, counted: AbstractSet[str]) -> None:
        """`counted` are nodes that came in the episode before."""
        self.opened = self.changed = seen.at_seconds
        nodes = {each.node.name: each for each in seen.state.nodes}
        # What is not Ready comes, or is broken: episodes are played from nodes that take pods.
        without = replace(seen.state, waiting=(), nodes=tuple(each for each in seen.state.nodes if each.ready))
        # Nodes that are not Ready yet were ordered for pods that wait now.
        now = seen.at_seconds
        self.standing = {
            name for name, each in nodes.items() if each.ready or name in counted or not _is_young(each, now)
        }
        self.cluster = beside(without, (), seen.known.limits)
        self.groups: dict[str, NodeGroup] = {}
        self.estimated: set[str] = set()
        self.short: set[str] = set()
        self.gone: set[str] = set()
        self.lost: set[str] = set()
        self.came: dict[str, ClusterNode] = {}
        self.waves: list[tuple[float, ClusterState, list[WaitingPods]]] = []
        """When each was taken, of which state, and its pods."""
        self.created: dict[str, float] = {}
        """When each pod was created, of all pods of the episode."""
        self.waited: dict[str, float] = {}
        """How long each waited that has a node."""
        self.waiting: set[str] = set()
        self.taken: set[str] = set()
        """Those that were taken in just now: what became of them is told from the next moment on."""
        self.beyond = 0
        self.sizes = dict(seen.sizes)
        self.scale_ups: dict[ScaleUp, None] = {}
        self.choices: dict[ScaleUp, None] = {}
        self.unknown: dict[str, None] = {}

    def take(self, seen: ClusterMoment, waiting: Sequence[WaitingPods]) -> None:
        """Take pods in, as one wave."""
        room, taken = MOST_PODS - len(self.created), []
        for each in waiting:
            pods = each.pods[:room] if each.pod_set.gang is None else each.pods if len(each.pods) <= room else ()
            room -= len(pods)
            self.beyond += len(each.pods) - len(pods)
            if pods:
                taken.append(replace(each, pod_set=replace(each.pod_set, count=len(pods)), pods=tuple(pods)))
        for ref in (ref for of in waiting for ref in of.pods):
            self.created[ref.uid] = ref.created_at_seconds or seen.at_seconds
        refs = [ref for of in taken for ref in of.pods]
        self.taken.update(ref.uid for ref in refs)
        if refs:
            self.waves.append((seen.at_seconds, replace(seen.state, nodes=(), bound={}), taken))
        self.changed = seen.at_seconds

    def see(self, seen: ClusterMoment) -> None:
        """Take in what has come since."""
        new = [each for each in seen.known.groups if each.id not in self.groups]
        if new:
            self.groups |= {each.id: each for each in beside(replace(seen.state, waiting=()), new, ()).node_groups}
        self.estimated |= seen.known.estimated
        self.short |= {name for name, size in seen.sizes.items() if size.back_off}
        self.unknown |= dict.fromkeys(seen.known.unknown)
        since = self.opened - BEFORE_SECONDS
        self.scale_ups |= dict.fromkeys(each for each in seen.scale_ups if each.at_seconds >= since)
        self.choices |= dict.fromkeys(seen.known.choices)
        nodes = {each.node.name: each for each in seen.state.nodes}
        self.gone |= self.standing - nodes.keys()
        self.lost |= self.came.keys() - nodes.keys()
        for name, node in nodes.items():
            if name not in self.standing:
                if name not in self.came or self.came[name].ready != node.ready:
                    self.changed = seen.at_seconds
                self.came[name] = node
        for uid in [uid for uid in self.waiting if uid not in seen.pending]:
            self.waiting.discard(uid)
            self.changed = seen.at_seconds
            if uid in seen.bound:
                self.waited[uid] = max(0.0, seen.at_seconds - self.created[uid])
        self.waiting |= self.taken
        self.taken.clear()

    def ended(self, now: float) -> Ended | None:
        """Return why it has ended; None where it has not."""
        if not self.waiting and now - self.changed >= SETTLED_SECONDS:
            return Ended.SERVED
        if now - self.opened >= LONGEST_SECONDS or len(self.waves) >= MOST_WAVES:
            return Ended.LONG
        return Ended.QUIET if now - self.changed >= QUIET_SECONDS else None

    # ---- what it comes to

    def close(self, seen: ClusterMoment, ended: Ended, prices: NodePrices) -> ClosedEpisode:
        now = seen.at_seconds
        young = {uid for uid in self.waiting if now - self.created[uid] < QUIET_SECONDS}
        if ended is Ended.LONG and young:  # what has just begun to wait is the next one's
            self.waiting -= young
            self.created = {uid: at for uid, at in self.created.items() if uid not in young}
            count = pluralize(len(young), "pod")
            self.unknown[f"which of the nodes are for {count} that still waited: these are the next episode's"] = None
        waves = tuple(self._waves())
        nodes = [each for name, each in self.came.items() if name not in self.lost]
        groups = {name: each for name, each in self.groups.items() if name not in self.short}
        came, of_none = _grouped(nodes, [*self.groups.values()], self.estimated, prices)
        pods = sum(each.pods for each in waves)
        mean = sum(self.waited.values()) / len(self.waited) if self.waited else None
        episode = Episode(
            id=f"{int(self.opened)}",
            opened_at_seconds=self.opened,
            closed_at_seconds=now,
            ended=ended,
            pods=pods,
            waves=len(waves),
            came=Outcome(came, len(self.waiting), mean),
            scale_ups=tuple(self.scale_ups)[:_MOST_SCALE_UPS],
            choices=tuple(self.choices)[:_MOST_SCALE_UPS],
            targets=_changes(self.sizes, seen.sizes),
            unknown=tuple(self._unknown(of_none, pods, len(waves))),
            node_seconds=self._node_seconds(nodes),
        )
        stood = tuple(each for each in self.cluster.nodes if each.name not in self.gone)
        cluster = replace(self.cluster, nodes=stood, node_groups=tuple(groups.values()))
        return ClosedEpisode(
            episode,
            RecordedState(cluster, waves),
            frozenset(self.estimated),
            self._why_not(groups),
        )

    def _waves(self) -> Iterator[Wave]:
        """Yield the waves, without pods that are the next episode's."""
        for at_seconds, state, taken in self.waves:
            kept = [found for each in taken if (found := only(each, self.created.keys())) is not None]
            refs = [ref for each in kept for ref in each.pods]
            if refs:
                waited = sum(at_seconds - self.created[ref.uid] for ref in refs) / len(refs)
                yield Wave(at_seconds, beside(replace(state, waiting=tuple(kept)), (), ()).pod_sets, waited)

    def _why_not(self, groups: Mapping[str, NodeGroup]) -> str:
        if not groups:
            return "no node group is known to plan with"
        if self.beyond:
            return f"it has {pluralize(self.beyond, 'pod')} more than are looked at"
        nodes = len(self.cluster.nodes)
        return f"{nodes:,} nodes stand, more than {MOST_NODES:,}" if nodes > MOST_NODES else ""

    def _unknown(self, of_none: int, pods: int, waves: int) -> Iterator[str]:
        """Yield what is not known, or has to be said beside the figures."""
        yield from self.unknown
        estimated = [name for name in self.groups if name in self.estimated]
        short = [name for name in self.groups if name in self.short]
        went = max(0, pods - len(self.waited) - len(self.waiting))
        said = (
            (len(estimated), f"prices of {some_of(estimated, _MOST_NAMED)}: they are by the price rule"),
            (
                len(short),
                f"what {some_of(short, _MOST_NAMED)} could have had: the plan does without, as CA had backed off",
            ),
            (of_none, f"the node group of {pluralize(of_none, 'node')} that came"),
            (not self.sizes, "sizes and maximums of node groups: the autoscaler's status was not read"),
            (waves > 1, f"when it was planned, the pods of later waves: there were {waves}, each planned as it came"),
            (went, f"what {pluralize(went, 'pod')} that went before getting a node would have got"),
            (len(self.gone), f"what was free on {pluralize(len(self.gone), 'node')} that went: the plan does without"),
            (len(self.lost), f"what {pluralize(len(self.lost), 'node')} cost that came and went"),
        )
        yield from (words for is_so, words in said if is_so)

    def _node_seconds(self, nodes: Iterable[ClusterNode]) -> float | None:
        found = []
        ordered = sorted([*(each.at_seconds for each in self.scale_ups), *(at for at, _, _ in self.waves)])
        for each in nodes:
            ready = next((c.since_seconds for c in each.conditions if c.type == _READY and c.status == "True"), 0)
            before = [at for at in ordered if at <= each.created_at_seconds]
            if ready and before:
                found.append(ready - before[-1])
        return median(found) if found else None


class EpisodeLedger:
    """Keeps the episodes of one cluster. Not thread-safe."""

    def __init__(self, prices: NodePrices) -> None:
        self._prices = prices
        self._open: _OpenEpisode | None = None
        self._gathering: _Gathering | None = None
        self._left: AbstractSet[PodKey] = frozenset()
        """Pods that waited when their episode ended, and still do."""
        self._counted: AbstractSet[str] = frozenset()
        """Nodes that came in the last episode."""

    @property
    def awaited(self) -> frozenset[str]:
        """Return the pods of the open episode that had no node when it was told last."""
        return frozenset(self._open.waiting) if self._open is not None else frozenset()

    @property
    def opened_at_seconds(self) -> float | None:
        """Return since when an episode is open; None where none is."""
        return None if self._open is None else self._open.opened

    def see(self, seen: ClusterMoment) -> ClosedEpisode | None:
        """Take in what is seen; return the episode that ends by it."""
        waiting = {ref.key for each in seen.state.waiting for ref in each.pods}
        self._left &= waiting
        self._gather(seen, waiting)
        episode = self._open
        if episode is None:
            return None
        episode.see(seen)
        ended = episode.ended(seen.at_seconds)
        if ended is None or (self._gathering is not None and ended is not Ended.LONG):
            return None
        self._open = None
        closed = episode.close(seen, ended, self._prices)
        self._counted = frozenset(episode.came)
        self._left = frozenset(self._left | (waiting & episode.created.keys()))
        return closed

    def _gather(self, seen: ClusterMoment, waiting: AbstractSet[PodKey]) -> None:
        """Take pods that are new, once no more have come for a moment."""
        taken = self._open.created.keys() if self._open is not None else ()
        new = waiting - self._left - set(taken)
        if not new:
            self._gathering = None
            return
        gathering, now = self._gathering, seen.at_seconds
        if gathering is None:
            gathering = self._gathering = _Gathering(now, now, new)
        if not new <= gathering.pods:
            gathering.last_seconds = now
        gathering.pods = new
        quiet = now - gathering.last_seconds >= GATHERING.idle_seconds
        if not quiet and now - gathering.since_seconds < GATHERING.window_seconds:
            return
        self._gathering = None
        if self._open is None:
            self._open = _OpenEpisode(seen, self._counted)
        self._open.take(seen, [found for each in seen.state.waiting if (found := only(each, new)) is not None])


def only(waiting: WaitingPods, keys: AbstractSet[PodKey]) -> WaitingPods | None:
    """Return those of these pods that are known by these keys; None where none is."""
    pods: tuple[PodRef, ...] = tuple(each for each in waiting.pods if each.key in keys and each.uid)
    if not pods:
        return None
    return replace(waiting, pod_set=replace(waiting.pod_set, count=len(pods)), pods=pods)


def _is_young(node: ClusterNode, now: float) -> bool:
    return now - node.created_at_seconds < LONGEST_SECONDS


def _grouped(
    nodes: Iterable[ClusterNode], groups: Sequence[NodeGroup], estimated: AbstractSet[str], prices: NodePrices
) -> tuple[tuple[GroupNodes, ...], int]:
    """Return nodes by their groups, and how many are of none that is known."""
    counts: Counter[tuple[str, float, int, bool]] = Counter()
    of_none = 0
    for each in nodes:
        group = group_of(each, groups)
        if group is not None:
            counts[group.id, group.price_usd_per_hour, group.weight, group.id in estimated] += 1
            continue
        of_none += 1
        place = place_of(each.node.labels)
        price = prices.of(place, each.node.allocatable)
        counts[place.instance_type or pool_of(each.node.labels) or "other nodes", price.usd_per_hour, 0, price[1]] += 1
    found = (
        GroupNodes(name, count, count * price, weight, is_estimated)
        for (name, price, weight, is_estimated), count in sorted(counts.items())
    )
    return tuple(found), of_none


def _changes(before: Mapping[str, GroupSize], after: Mapping[str, GroupSize]) -> Mapping[str, tuple[int, int]]:
    """Return the target sizes that changed."""
    both = ((name, before[name].target_size, size.target_size) for name, size in after.items() if name in before)
    return {name: (was, now) for name, was, now in both if was != now}
