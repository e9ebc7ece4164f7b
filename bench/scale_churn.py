"""The churn of `bench.scale_live`: it plays those who change a cluster, at a rate: the controllers of workloads, the
scheduler, kubelets, and the machines that come."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from bench.scale_objects import Standing, large_pod, node_document, pod, running
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.backends.simulated.backend import ID_PREFIX
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from solver.model import NodeGroup
from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import NODES
from tests.support.controlplane.plane import ControlPlane

CYCLES_A_SECOND = 10
"""Of five changes on average: a running pod is deleted, a new one created and bound, and runs; another pod and a Node
report their states."""
LARGE_EVERY_SECONDS = 20.0
LARGE_AT_ONCE = 2
SCHEDULED_AFTER_SECONDS = 1.0
_WORKERS = 12
_EVERY_SECONDS = 0.25
_LIST_SECONDS = 600.0


class Pending:
    """Pods that are not bound, and where they are nominated to, by the watch."""

    def __init__(self) -> None:
        self.nominated: dict[tuple[str, str], str] = {}

    @staticmethod
    def decode(data: bytes) -> tuple[str, str, str]:
        found = kubernetes_pb2.Pod.FromString(data)
        return found.metadata.namespace, found.metadata.name, found.status.nominatedNodeName

    def replaced(self, objects: Any) -> None:
        self.nominated = {(namespace, name): node for namespace, name, node in objects}

    def applied(self, obj: tuple[str, str, str]) -> None:
        self.nominated[obj[0], obj[1]] = obj[2]

    def deleted(self, of: ObjectIdentity) -> None:
        self.nominated.pop((of.namespace, of.name), None)


class Churn:
    """From `running` on. `changes` counts what was written, `problems` what was refused."""

    def __init__(
        self,
        plane: ControlPlane,
        groups: Mapping[str, NodeGroup],
        simulated: Path,
        standing: Sequence[Standing],
        *,
        planned: bool,
    ) -> None:
        """`planned`: every tenth new pod is left to the planner, which is to nominate it to a node with room."""
        self._plane, self._groups, self._simulated, self._planned = plane, groups, simulated, planned
        self._standing = list(standing)
        self._nodes = list({each.node: None for each in standing})
        self._rng = random.Random(7)
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._apis: threading.local = threading.local()
        self._to_bind: deque[tuple[float, Standing]] = deque()
        self._waiting: dict[tuple[str, str], Standing] = {}
        """Pods that are bound where they are nominated to."""
        self._pending = Pending()
        self._new_nodes: set[str] = set()
        self._taken: set[str] = set()
        """New nodes with pods."""
        self.changes = 0
        self.problems: Counter[str] = Counter()
        self.waited_seconds: list[float] = []
        """Of pods that waited for a nomination, until they were bound."""
        self._since: dict[tuple[str, str], float] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def new_nodes(self) -> int:
        return len(self._new_nodes)

    def large(self) -> list[Standing]:
        """Large pods that no node has been found for."""
        with self._lock:
            return [each for each in self._waiting.values() if each.name.startswith("large-")]

    @contextmanager
    def running(self, rate: float) -> Iterator[None]:
        """Play, at so many changes a second, as far as the API server takes them."""
        stopping = threading.Event()
        client = self._plane.client()
        query = {"fieldSelector": "spec.nodeName="}
        # To find the few that are not bound the API server reads all pods, which takes it as long as it takes.
        patient = client.hurried(_LIST_SECONDS)
        informer = Informer(patient, Resource("/api/v1/pods", Pending.decode, query=query), self._pending)
        informer.start()
        pool = ThreadPoolExecutor(_WORKERS)
        loops: list[Callable[[], None]] = [
            lambda: self._paced(stopping, pool, rate),
            lambda: self._again(stopping, pool, self._schedule),
            lambda: self._again(stopping, pool, self._machines),
            lambda: self._every(stopping, pool, LARGE_EVERY_SECONDS, self._large),
        ]
        threads = [threading.Thread(target=each, daemon=True) for each in loops]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            stopping.set()
            for each in threads:
                each.join()
            pool.shutdown(cancel_futures=True)
            informer.stop()
            client.close()

    # ---- the pace

    def _paced(self, stopping: threading.Event, pool: ThreadPoolExecutor, rate: float) -> None:
        began, done = time.monotonic(), 0
        per_second = rate * CYCLES_A_SECOND / 50
        while not stopping.wait(0.05):
            # What the API server does not take is not caught up with later.
            due = min(int(per_second * (time.monotonic() - began)), done + CYCLES_A_SECOND)
            for _ in range(done, due):
                pool.submit(self._tried, self._cycle)
            done = due

    def _again(self, stopping: threading.Event, pool: ThreadPoolExecutor, step: Callable[..., None]) -> None:
        self._every(stopping, pool, _EVERY_SECONDS, step)

    def _every(
        self, stopping: threading.Event, pool: ThreadPoolExecutor, seconds: float, step: Callable[..., None]
    ) -> None:
        while not stopping.wait(seconds):
            self._tried(step, pool)

    def _tried(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except ApiRefusal as refused:
            with self._lock:
                self.problems[f"{refused.status}: {str(refused)[:120]}"] += 1
        except Exception as error:  # noqa: BLE001 - told in the end
            with self._lock:
                self.problems[repr(error)[:200]] += 1

    @property
    def _api(self) -> Api:
        if not hasattr(self._apis, "api"):
            self._apis.api = self._plane.api()
        found: Api = self._apis.api
        return found

    def _changed(self) -> None:
        with self._lock:
            self.changes += 1

    # ---- workloads and kubelets

    def _cycle(self) -> None:
        with self._lock:
            number = next(self._numbers)
            place, other = self._rng.sample(range(len(self._standing)), 2)
            old, told = self._standing[place], self._standing[other]
            node = self._rng.choice(self._nodes)
            new = Standing(old.workload, f"workload-{old.workload}-n{number:06}", old.node)
            self._standing[place] = new
        self._api.delete(old.path, gracePeriodSeconds=0)
        self._changed()
        at_once = number % 10 < 5
        if number % 10 == 9 and self._planned:
            self._wait_for_nomination(new)
        self._api.create(new.path.rpartition("/")[0], pod(new.workload, new.name, new.node if at_once else ""))
        self._changed()
        if at_once:
            self._run(new)
        elif (new.path.split("/")[4], new.name) not in self._waiting:
            self._to_bind.append((time.monotonic() + SCHEDULED_AFTER_SECONDS, new))
        self._api.merge(f"{told.path}/status", running(f"{told.name} at {number}"))
        self._changed()
        if number % 2:
            message = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": f"at {number}"}
            self._api.ask(
                "PATCH",
                f"{NODES}/{node}/status",
                {"status": {"conditions": [message]}},
                kind="application/strategic-merge-patch+json",
            )
            self._changed()

    def _run(self, each: Standing) -> None:
        self._api.merge(f"{each.path}/status", running(each.name))
        self._changed()

    def _wait_for_nomination(self, each: Standing) -> None:
        key = each.path.split("/")[4], each.name
        with self._lock:
            self._waiting[key] = each
            self._since[key] = time.monotonic()

    def _large(self, _: ThreadPoolExecutor) -> None:
        for _number in range(LARGE_AT_ONCE):
            with self._lock:
                name = f"large-{next(self._numbers):06}"
            each = Standing(0, name, "")
            self._wait_for_nomination(each)
            self._api.create(each.path.rpartition("/")[0], large_pod(name))
            self._changed()

    # ---- the scheduler

    def _schedule(self, pool: ThreadPoolExecutor) -> None:
        now = time.monotonic()
        while self._to_bind and self._to_bind[0][0] <= now:
            pool.submit(self._tried, self._bind, self._to_bind.popleft()[1])
        for key, each in list(self._waiting.items()):
            node = self._pending.nominated.get(key) if self._planned else self._empty_node()
            if node and self._is_open(node):
                self._taken.add(node)
                with self._lock:
                    del self._waiting[key]
                    self.waited_seconds.append(now - self._since.pop(key))
                pool.submit(self._tried, self._bind, Standing(each.workload, each.name, node))

    def _empty_node(self) -> str | None:
        """A new node for a large pod, which nobody nominates where the autoscaler orders."""
        return next(iter(self._new_nodes - self._taken), None)

    def _is_open(self, node: str) -> bool:
        taints = self._api.get(f"{NODES}/{node}")["spec"].get("taints") or ()
        return all(taint["key"] != START_UP_TAINT for taint in taints)

    def _bind(self, each: Standing) -> None:
        target = {"kind": "Node", "name": each.node}
        self._api.create(f"{each.path}/binding", {"metadata": {"name": each.name}, "target": target})
        self._changed()
        self._run(each)

    # ---- machines

    def _machines(self, _: ThreadPoolExecutor) -> None:
        """Have a Node for each new instance, and none for those that are gone."""
        with closing(sqlite3.connect(f"file:{self._simulated}?mode=ro", uri=True)) as connection:
            rows = connection.execute(
                "SELECT name, node_group FROM instances WHERE token NOT LIKE '00000000%' AND deleted_at IS NULL"
                " AND running_at <= ?",
                (time.time(),),
            ).fetchall()
        there = {name for name, _ in rows}
        for name, group_id in rows:
            if name not in self._new_nodes:
                self._api.create(NODES, node_document(self._groups[group_id], f"{ID_PREFIX}{name}", held=True))
                # Admission taints every new Node, and who would take that off does not run.
                kept = [{"key": START_UP_TAINT, "effect": "NoSchedule"}]
                self._api.merge(f"{NODES}/{name}", {"spec": {"taints": kept}})
                self._new_nodes.add(name)
        for name in self._new_nodes - there:
            self._api.delete(f"{NODES}/{name}")
            self._new_nodes.discard(name)
