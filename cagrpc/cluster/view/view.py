"""The cluster view: what planning reads of a cluster, reduced as objects change. One changed pod costs the same however
many there are. Lists and watches are `cagrpc.kube`'s, what they feed is `view_model`; what objects are to it is in
`view_objects` and `view_workloads`, what they add up to in `view_classes`, `view_nodes` and `view_waiting`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, GangCount
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.markers import NAMESPACE
from cagrpc.cluster.state import Arrivals, ClusterState, PendingPod, PodRef
from cagrpc.cluster.view.model import NODES, ClusterModel
from cagrpc.cluster.view.objects import DEFAULT_SCHEDULER
from cagrpc.errors import Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.informer.informers import still_to_come
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all
from solver.model import PodSpec
from solver.slack.model import Placement


class ClusterView:
    """Thread-safe. It follows the cluster from `start` to `stop`."""

    def __init__(
        self,
        client: Client,
        *,
        gang_label: str = DEFAULT_GANG_LABEL,
        schedulers: AbstractSet[str] = frozenset({DEFAULT_SCHEDULER}),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        namespace: str = NAMESPACE,
        slack: Exclusion | None = None,
        expects: bool = False,
    ) -> None:
        """`clock` gives seconds that only grow, `now` those since the epoch. Pods for other schedulers than these are
        not planned. `namespace` is cagrpc's own. `slack` is for whom it holds no room; without it nothing is learnt for
        the slack. `expects`: pods that workloads still have to create are among those that wait."""
        self._model = ClusterModel(
            gang_label=gang_label,
            schedulers=schedulers,
            namespace=namespace,
            clock=clock,
            now=now,
            slack=slack,
            expects=expects,
        )
        by_path = {
            each.resource.path: each.informer(client, needed=not each.resource.optional)
            for each in self._model.followed
        }
        self.informers = tuple(by_path.values())
        self._nodes = by_path[NODES]
        self._expected: Callable[[], frozenset[PodSpec]] = frozenset

    def expect(self, pods: Callable[[], frozenset[PodSpec]]) -> None:
        """From now on nodes show of the pods that run there also what these see: pods that are not there yet and are
        to be planned all the same, with namespaces and labels. `pods` is asked at each look, by any thread."""
        self._expected = pods

    def start(self) -> None:
        for each in self.informers:
            each.reflector.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Waits at most so long. May be repeated."""
        stop_all([each.reflector.stop for each in self.informers], wait_seconds)

    @property
    def problem(self) -> str | None:
        """Why the cluster is not known yet, or not as it is now; None where all is well."""
        late = (each.reflector.problem for each in self.informers if each.needed)
        return self._unknown() or next(filter(None, late), None)

    def arrivals(self) -> Arrivals:
        """At once, however many pods there are."""
        return self._model.arrivals()

    def state(self, *, without: AbstractSet[str] = frozenset()) -> ClusterState:
        """One consistent look, without the pending pods of these keys, which are served already. Raises Unavailable
        before all has been listed once; after that it is what was known last, also while `problem` says why it is not
        newer."""
        unknown = self._unknown()
        if unknown:
            raise Unavailable(unknown)
        return self._model.state(without, self._expected())

    def ready_instances(self) -> AbstractSet[str]:
        """Provider ids of the nodes that are Ready. Raises Unavailable before nodes have been listed once, and while
        changes are not learnt of: a node that is not seen to be Ready then may be so all the same."""
        problem = self._nodes.reflector.problem or self._nodes.still_to_come
        if problem:
            raise Unavailable(problem)
        return self._model.ready_instances()

    def held_nodes(self) -> Mapping[str, str]:
        """Provider ids and names of the nodes with our start-up taint. Raises Unavailable before all has been listed
        once: who lets nodes go must know their pods too."""
        unknown = self._unknown()
        if unknown:
            raise Unavailable(unknown)
        return self._model.held_nodes()

    def held_at(self, name: str) -> int:
        """The index of our start-up taint among those of this node; -1 without it."""
        return self._model.held_at(name)

    def node_names(self) -> Mapping[str, str]:
        """Provider ids and names of all nodes, as they are known."""
        return self._model.node_names()

    def pod_of(self, uid: str) -> PodRef | None:
        """A pod that waits."""
        return self._model.pod_of(uid)

    def pause_pods(self) -> Placement:
        """Where pause pods of the slack are, as they are known."""
        return self._model.pause_pods()

    def tell(self, changed: Callable[[str, PendingPod | None], object]) -> None:
        """From now on, of each change of a pending pod: its UID, and None where it is pending no longer. What is called
        must be quick, and ask nothing of the view."""
        self._model.tell(changed)

    def pending(self, uids: Iterable[str]) -> Mapping[str, PendingPod]:
        """Those of these pods that no scheduler has bound yet."""
        return self._model.pending(uids)

    def nodes_of(self, uids: Iterable[str]) -> Mapping[str, str]:
        """Where those of these pods are that are bound."""
        return self._model.nodes_of(uids)

    def nominated_by_us(self) -> Mapping[str, PendingPod]:
        """Pending pods whose nomination is our own."""
        return self._model.nominated_by_us()

    def gang(self, name: str) -> GangCount | None:
        """All pods of a gang, by its name; None where there are none, or not all has been listed once."""
        return None if self._unknown() else self._model.gang(name)

    def _unknown(self) -> str:
        # Minimum counts matter from the first plan on: kinds that a cluster may not know are waited for too.
        return still_to_come(self.informers)
