"""Who watches the cluster of a campaign, and the autoscaler's part in it. What is judged is read from the API server by
a connection of one's own, and from the books of the simulated cloud."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import urllib3

from bench.faults.cloud import BookedInstance, Books
from bench.faults.servers import Server
from bench.faults.waves import OWNER, Waves
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.cluster.markers import BOOKING_LABELS, SCALE_DOWN_DISABLED, SCALE_DOWN_DISABLED_BY_US
from cagrpc.kube.journal.objects import FLEET_RECORDS, INCREMENTS, unpack
from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.live import SIMULATED

AWAY = (ApiRefusal, urllib3.exceptions.HTTPError)
"""What one's own requests may meet while the API server is tormented."""
_EMPTY_SECONDS, _ONCE_BOOKED_EMPTY_SECONDS = 5.0, 60.0
"""How long the autoscaler leaves a node empty (by default ten minutes). One with the label of a request longer, until
an annotation says whether that still has its reservation."""
_FINISHED = ("done", "rolled-back")


def _written(node: Any, annotation: str) -> str:
    """Return who wrote an annotation, and when."""
    fields = node["metadata"].get("managedFields") or ()
    by = [each for each in fields if f"f:{annotation}" in str(each.get("fieldsV1"))]
    return ", ".join(f"by {each.get('manager')} at {each.get('time')}" for each in by) or "by nobody known"


def _cloud_time(reader: sqlite3.Connection) -> float:
    """Return the time of the last change: processes' clocks differ, and the cloud goes by the one that is ahead."""
    (found,) = reader.execute("SELECT value FROM facts WHERE name = 'latest'").fetchone()
    return float(found)


@dataclass(slots=True)
class Seen:
    """The cluster at one moment."""

    pods: list[Any]
    nodes: list[Any]
    increments: list[Any]

    def pods_on(self) -> Mapping[str, list[Any]]:
        found: dict[str, list[Any]] = defaultdict(list)
        for pod in self.pods:
            if pod["spec"].get("nodeName"):
                found[pod["spec"]["nodeName"]].append(pod)
        return found


@dataclass
class Watcher:
    cluster: Cluster
    waves: Waves
    file: Path
    """Of the simulated cloud."""
    told: Counter[str]
    increments: dict[str, Counter[str]] = field(default_factory=dict)
    """Nodes by group of each increment that was ever seen."""
    used: set[str] = field(default_factory=set)
    """Names of Nodes that ever had a pod of a wave."""
    deletes: dict[str, bool] = field(default_factory=dict)
    """Ids of instances that the autoscaler wanted deleted: whether it was answered with OK."""
    in_vain: list[str] = field(default_factory=list)
    """Nodes that it took and that never had a pod."""
    refused: dict[str, str] = field(default_factory=dict)
    """What the autoscaler was answered last about an instance that it may not delete."""
    _empty_since: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._books = Books(self.file, _cloud_time)

    def close(self) -> None:
        self._books.close()

    def books(self) -> Mapping[str, BookedInstance]:
        return self._books.read()

    def look(self) -> Seen | None:
        """Look at all of it; None where nobody answers."""
        admin = self.cluster.admin
        try:
            nodes = admin.items(NODES, labelSelector=f"{SIMULATED}=true")
            seen = Seen(self.cluster.pods(), nodes, admin.items(INCREMENTS))
        except AWAY:
            return None
        for each in seen.increments:
            groups = {group["nodeGroup"]: group["nodes"] for group in each["spec"]["groups"]}
            self.increments[each["metadata"]["name"]] = Counter(groups)
        self.used.update(seen.pods_on())
        return seen

    # ---- the autoscaler's part

    def scale_down(self, seen: Seen, leader: Server) -> None:
        """Delete nodes that are empty and that nothing goes to, as the cluster-autoscaler does after its own time."""
        now, on = time.monotonic(), seen.pods_on()
        nominated = {pod["status"].get("nominatedNodeName") for pod in seen.pods}
        empty = [
            node
            for node in seen.nodes
            if node["metadata"]["name"] not in on and node["metadata"]["name"] not in nominated and _is_free(node)
        ]
        names = {node["metadata"]["name"] for node in empty}
        self._empty_since = {name: self._empty_since.get(name, now) for name in names}
        due = [node for node in empty if self._empty_since[node["metadata"]["name"]] <= now - _patience_seconds(node)]
        for node in due:
            self._delete(node, leader)

    def _delete(self, node: Any, leader: Server) -> None:
        instance_id = node["spec"]["providerID"]
        if self.deletes.get(instance_id):
            return
        self.deletes[instance_id] = False
        if node["metadata"]["name"] not in self.used:
            self.in_vain.append(node["metadata"]["name"])
        try:
            with leader.provider() as provider:
                provider.delete(node["metadata"]["labels"]["pool"], instance_id)
        except (grpc.RpcError, OSError) as error:
            self.refused[node["metadata"]["name"]] = str(error)
            return
        self.deletes[instance_id] = True
        self.told["nodes that the autoscaler deleted"] += 1

    # ---- quiet points

    def unsettled(self, seen: Seen) -> str:
        """Return what is still under way; empty where nothing is."""
        lacking = self.waves.short_of(seen.pods)
        if lacking:
            return f"pods do not run: {dict(lacking)}"
        unwanted = [
            p["metadata"]["name"] for p in seen.pods if p["metadata"]["labels"].get(OWNER) in self.waves.unwanted
        ]
        if unwanted:
            return f"pods are not gone: {unwanted}"
        moving = [each["metadata"]["name"] for each in seen.increments if each["status"]["phase"] not in _FINISHED]
        if moving:
            return f"increments are in flight: {moving}"
        on = seen.pods_on()
        idle = [node for node in seen.nodes if node["metadata"]["name"] not in on]
        if idle:
            return f"nodes have no pods: {'; '.join(map(self._why_there, idle))}"
        names = {node["spec"]["providerID"] for node in seen.nodes}
        standing = {each.id for each in self.books().values() if each.stands}
        if names != standing:
            return (
                f"Nodes without instance {sorted(names - standing)}, instances without Node {sorted(standing - names)}"
            )
        return ""

    def _why_there(self, node: Any) -> str:
        """Return why the autoscaler has not deleted an empty node."""
        name, annotations = node["metadata"]["name"], node["metadata"].get("annotations") or {}
        if not _is_free(node):
            why, written = annotations.get(SCALE_DOWN_DISABLED_BY_US), _written(node, SCALE_DOWN_DISABLED_BY_US)
            return f"{name} with the taints {_taints(node)}, kept because {why}, written {written}"
        if self.deletes.get(node["spec"]["providerID"]):
            return f"{name} was deleted, by what was answered"
        return f"{name} is not deleted: {self.refused.get(name, 'a pod is nominated to it, or its time has not come')}"

    def judge(self, seen: Seen, leader: Server, *, room_came: bool) -> Iterator[str]:
        """Yield what must not be, once all is settled. `room_came`: whether pods had room, since the last time, that no
        plan could count on: others went, or an older backup was restored."""
        yield from self._judge_orders()
        yield from self._judge_deletes()
        tainted = [n["metadata"]["name"] for n in seen.nodes if START_UP_TAINT in _taints(n)]
        if tainted:
            yield f"held for ever: {tainted}"
        yield from self._judge_gangs(seen)
        yield from self._judge_targets(seen, leader)
        yield from self._judge_journal(seen)
        if self.in_vain and not room_came:
            yield f"nodes for nobody: {self.in_vain}"
        else:
            self.told["nodes for nobody, as others went or after a restore"] += len(self.in_vain)
        self.in_vain.clear()

    def _judge_orders(self) -> Iterator[str]:
        """Every order was whole, and carried out once."""
        made: dict[str, Counter[str]] = defaultdict(Counter)
        for each in self.books().values():
            made[each.increment_id][each.node_group] += 1
            if each.made != 1:
                yield f"{each.id} with the token {each.token} was made {each.made} times"
        for increment_id, counts in made.items():
            known = self.increments.get(increment_id)
            if known is not None and counts != known:
                yield f"increment {increment_id} for {dict(known)} was made in part: {dict(counts)}"

    def _judge_deletes(self) -> Iterator[str]:
        standing = {each.id for each in self.books().values() if each.stands}
        kept = sorted(each for each, done in self.deletes.items() if done and each in standing)
        if kept:
            yield f"deleted by the autoscaler, which was answered with OK, and standing: {kept}"

    def _judge_gangs(self, seen: Seen) -> Iterator[str]:
        bound: Counter[str] = Counter()
        for pod in seen.pods:
            bound[_owner(pod)] += bool(pod["spec"].get("nodeName"))
        for wave in self.waves.wanted.values():
            if wave.kind != "web" and bound[wave.name] not in (0, wave.pods):
                yield f"{wave.name} is bound in part: {bound[wave.name]} of {wave.pods}"

    def _judge_targets(self, seen: Seen, leader: Server) -> Iterator[str]:
        pools = Counter(node["metadata"]["labels"]["pool"] for node in seen.nodes)
        with leader.provider() as provider:
            for group_id in provider.node_groups():
                if (target := provider.target(group_id)) != pools[group_id]:
                    yield f"node group {group_id} has a target of {target}, and {pools[group_id]} nodes"

    def _judge_journal(self, seen: Seen) -> Iterator[str]:
        """Nothing is stored that the root does not name."""
        records = {each["metadata"]["name"]: each for each in self.cluster.admin.items(FLEET_RECORDS)}
        named = set(unpack(records["journal"]["spec"]["content"])["increments"])
        if odd := named ^ {each["metadata"]["name"] for each in seen.increments}:
            yield f"Increments that the root does not name, or that are not there: {sorted(odd)}"
        if parts := [name for name in records if name.startswith("part-")]:
            yield f"parts of nothing: {parts}"


def _owner(pod: Any) -> str:
    return str((pod["metadata"].get("labels") or {}).get(OWNER, ""))


def _taints(node: Any) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints", ())]


def _is_free(node: Any) -> bool:
    """Return whether nothing says that the node is needed."""
    metadata = node["metadata"]
    disabled = (metadata.get("annotations") or {}).get(SCALE_DOWN_DISABLED) == "true"
    return not disabled and START_UP_TAINT not in _taints(node)


def _patience_seconds(node: Any) -> float:
    booked = any(label.startswith(BOOKING_LABELS) for label in node["metadata"].get("labels") or {})
    return _ONCE_BOOKED_EMPTY_SECONDS if booked else _EMPTY_SECONDS
