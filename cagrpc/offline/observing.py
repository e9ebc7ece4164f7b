"""`cagrpc observe`: a cluster is watched, and each time pods wait, what came is compared with what would have been
planned. It lists and watches, and writes nothing there. Its node groups are NodePools or MachineDeployments, those of
given provisioners, or else those that its nodes show."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.model import ModelSettings
from cagrpc.cluster.view.view import ClusterView
from cagrpc.config.files import load_provisioners
from cagrpc.config.groups import Expanded
from cagrpc.config.reading import price_list
from cagrpc.controllers.autoscaler import AutoscalerConfigMaps, GroupSize
from cagrpc.controllers.episodes.controller import EpisodeController
from cagrpc.controllers.episodes.ledger import ClosedEpisode
from cagrpc.controllers.episodes.log import KeptEpisode
from cagrpc.controllers.episodes.model import Episode, KnownGroups
from cagrpc.controllers.episodes.planning import finished
from cagrpc.controllers.kept import InFile
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import AutoscalerConfigMapSettings
from cagrpc.errors import InvalidInput
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, read_catalogue
from cagrpc.fleet.prices import NodePrices
from cagrpc.fleet.provisioners import pool_of
from cagrpc.kube.client.client import Client
from cagrpc.offline.inputs import Inputs, with_nodes
from cagrpc.offline.live import provisioners_of
from cagrpc.runtime.clock import SteadyClock
from cagrpc.runtime.runner import Runner
from solver.model import Budget, NodeGroup

GroupsThatStand = Callable[[ClusterState, NodePrices], tuple[tuple[NodeGroup, ...], frozenset[str]]]
"""Returns the node groups that nodes show, and which of them have no price that is known."""
OF_NODES = (
    "node groups without a node, weights and maximums: the node groups are those that the nodes show; --provisioners"
    " says others"
)

_MOST_WARNINGS = 10


@dataclass(frozen=True, slots=True)
class ClusterGroups:
    """The node groups of a cluster: of its provisioners, where there are any, or those that its nodes show."""

    expanded: Expanded | None
    that_stand: GroupsThatStand
    prices: NodePrices
    sizes: Callable[[], dict[str, GroupSize]]

    def known(self, state: ClusterState, since_seconds: float) -> KnownGroups:  # noqa: ARG002 - nodes say it all
        if self.expanded is not None:
            groups = self.expanded.groups
            limits = with_nodes(self.expanded.limits, groups, state.nodes)
            return KnownGroups(groups, limits=limits, unknown=self.expanded.warnings[:_MOST_WARNINGS])
        groups, estimated = self.that_stand(state, self.prices)
        sizes = self.sizes()
        return KnownGroups(tuple(_sized(each, sizes) for each in groups), estimated, unknown=(OF_NODES,))


def _sized(group: NodeGroup, sizes: dict[str, GroupSize]) -> NodeGroup:
    """Return the group with the sizes that the autoscaler's status has of its pool, where it goes by that name."""
    size = sizes.get(pool_of(group.labels))
    return group if size is None else replace(group, target_size=size.target_size, max_size=size.max_size)


def observe(
    what: Inputs,
    kept: Path,
    that_stand: GroupsThatStand,
    on_end: Callable[[Episode], object],
    until: threading.Event,
) -> tuple[KeptEpisode, ...]:
    """Watch until the event is set; return what is kept in the file `kept`, which outlives the process. Without a
    kubeconfig it is the cluster that this runs in. Raises InvalidInput and InvalidConfiguration where the inputs cannot
    be read."""
    catalogue = read_catalogue(what.catalogue) if what.catalogue else embedded_catalogue()
    prices = NodePrices(price_list(catalogue, what.prices))
    with closing(Client.connect(what.kubeconfig, what.context)) as client:
        config_maps = AutoscalerConfigMaps(client, AutoscalerConfigMapSettings())

        def sizes() -> dict[str, GroupSize]:
            return dict(config_maps.sizes)

        groups = ClusterGroups(_expanded(what, client, catalogue), that_stand, prices, sizes)
        clock = SteadyClock()
        read = ModelSettings(gang_label=what.gang_label, schedulers=what.schedulers, capacity_quotas=False)
        view = ClusterView(client, read, now=clock)
        controller = EpisodeController(client, view, groups, sizes, InFile(kept), prices, Runtime(clock))
        controller.on_end = on_end
        runner = Runner()
        runner.add(view, config_maps, controller)
        runner.start()
        try:
            until.wait()
        finally:
            runner.stop()
        return controller.log.latest()


def _expanded(what: Inputs, client: Client, catalogue: Catalogue) -> Expanded | None:
    """Return the given provisioners, or the cluster's own; None where it has none."""
    if what.provisioners:
        return load_provisioners(what.provisioners, catalogue)
    try:
        return provisioners_of(client, catalogue)
    except InvalidInput:
        return None


def planned_again(found: Sequence[KeptEpisode], budget: Budget) -> tuple[Episode, ...]:
    """Return the episodes with the plans that their recorded states give now; as they were where the state is not
    kept."""
    again = []
    for each in found:
        state, episode = each.recorded(), each.episode
        if state is None or episode.planned is None:
            again.append(episode)
            continue
        estimated = frozenset(of.node_group for of in episode.planned.nodes if of.estimated)
        without = replace(episode, planned=None)
        again.append(finished(ClosedEpisode(without, state, estimated), budget) or episode)
    return tuple(again)
