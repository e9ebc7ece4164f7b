"""Gangs in a scale-up of the autoscaler: which pods an option is for, and how pods are ranked. Which pods of a gang
must be placed together is decided in `api.core.gangs`; here that rule is applied to the gang's pods in a request.

Any tenant may put its pods into a gang, so a gang affects its own pods alone: those that an option would serve a part
of do not count there, and the others keep the option open.

CA leaves out pods that fit on nodes that stand or come, and a request has no running pods. So without a cluster view a
gang is what the request has of it; with one, pods that CA does not offer count as served by what stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cagrpc.api.autoscaler.expander import Option
from cagrpc.api.core.gangs import Division, divide, incomplete
from cagrpc.api.core.pods import Pod
from cagrpc.fleet.model import PodKey
from solver.model.quantities import pluralize

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.cluster.view.view import ClusterView

_LONGEST_NAME = 400  # of what anybody may send; a kind, a namespace and a name are shorter
_PLAN = "no option covers them: a gang that needs several node groups needs drive: plan"


@dataclass(frozen=True, slots=True)
class OptionDemand:
    """The demand that an option serves."""

    option: Option
    wanted: frozenset[str]
    """Keys of the pods that it serves: not those that are served already, that consume ProvisioningRequests, or
    whose gang it would serve a part of."""
    gangs: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    """The keys of those that are in gangs, by gang."""
    uncounted: str = ""
    """Which of its pods do not count because of their gang, for people; empty where there are none."""

    @property
    def why_left_out(self) -> str:
        """Why it would split a gang and serves no other pod, for people; empty where it may be chosen."""
        return "" if self.wanted else self.uncounted


class OfferedGangs:
    """The gangs of one request. `in_flight` are keys of pods that are served already."""

    def __init__(
        self,
        options: Sequence[Option],
        in_flight: AbstractSet[PodKey] = frozenset(),
        known: ClusterView | None = None,
    ) -> None:
        offered: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        for option in options:
            for pod in option.pods:
                if pod.gang is not None:
                    offered[pod.gang.name].setdefault(pod.key, pod)
        self._in_flight = in_flight
        self._divisions = {gang: _division(gang, pods, in_flight, known) for gang, pods in offered.items()}
        self._needed = {gang: sum(count for _, count in division.whole) for gang, division in self._divisions.items()}
        shares = [self._share(option) for option in options]
        covered = {gang for share in shares for gang, keys in share.items() if self._serves(gang, keys)}
        self.offers = tuple(self._offer(option, share, covered) for option, share in zip(options, shares, strict=True))
        """They are in the order of the options."""

    def _share(self, option: Option) -> Mapping[str, set[str]]:
        """Return the keys of an option's pods by gang."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        if not self._divisions:
            return found
        for pod in option.pods:
            if pod.gang is not None and not self._served(pod):
                found[pod.gang.name].add(pod.key)
        return found

    def _serves(self, gang: str, keys: AbstractSet[str]) -> bool:
        """Return whether these are as many of the gang as must be served together."""
        return not self._divisions[gang].missing and len(keys) >= self._needed[gang]

    def _offer(self, option: Option, share: Mapping[str, AbstractSet[str]], covered: AbstractSet[str]) -> OptionDemand:
        whole = {gang: keys for gang, keys in share.items() if self._serves(gang, keys)}
        broken = [gang for gang in share if gang not in whole]
        wanted = frozenset(
            pod.key for pod in option.pods if not self._served(pod) and (pod.gang is None or pod.gang.name in whole)
        )
        uncounted = self._why_broken(broken[0], len(share[broken[0]]), broken[0] in covered) if broken else ""
        if len(broken) > 1:
            uncounted += f"; the same of {pluralize(len(broken) - 1, 'other gang')}"
        return OptionDemand(option, wanted, whole, uncounted)

    def _why_broken(self, gang: str, pods: int, covered: bool) -> str:
        division, name = self._divisions[gang], gang[:_LONGEST_NAME]
        if division.missing:
            needed = division.there + division.missing
            return f"has pods of a gang that waits for others: {incomplete(name, division.there, needed)}"
        hint = "" if covered else f"; {_PLAN}"
        served = pluralize(pods, "pod")
        return f"serves {served} of gang {name}, of which {self._needed[gang]} must be served together{hint}"

    def demand(self, open_: Sequence[OptionDemand]) -> tuple[Pod, ...]:
        """Return the pods of all options as the planner is to see them: without those of incomplete gangs, those in
        flight and those that consume ProvisioningRequests; of a gang with a minimum so many
        are the gang as must be whole, such as all of the `open_` offers that are for the gang serve. Where these have
        too few in common, its pods are ranked as ordinary ones."""
        whole = self._whole(open_)
        found: dict[str, Pod] = {}
        for pod in (pod for offer in self.offers for pod in offer.option.pods):
            if pod.key not in found and not (self._served(pod) or self._waits(pod)):
                found[pod.key] = pod if pod.gang is None or pod.key in whole else replace(pod, gang=None)
        return tuple(found.values())

    def _served(self, pod: Pod) -> bool:
        return pod.consumer or pod.key in self._in_flight

    def _waits(self, pod: Pod) -> bool:
        return pod.gang is not None and self._divisions[pod.gang.name].missing > 0

    def _whole(self, open_: Sequence[OptionDemand]) -> AbstractSet[str]:
        """Return keys of the pods that are ranked as gangs."""
        found: set[str] = set()
        for gang, division in self._divisions.items():
            in_order = [pod.key for part in (division.whole, division.others) for pod, _ in part]
            common = set(in_order).intersection(*(offer.gangs[gang] for offer in open_ if gang in offer.gangs))
            shared = [key for key in in_order if key in common]
            if len(shared) >= self._needed[gang]:
                found.update(shared[: self._needed[gang]])
        return found


def _division(
    gang: str, pods: Mapping[str, Pod], in_flight: AbstractSet[PodKey], known: ClusterView | None
) -> Division[Pod]:
    pending = sorted(
        (pod for pod in pods.values() if pod.key not in in_flight), key=lambda pod: (pod.created_at_seconds, pod.name)
    )
    served = len(pods) - len(pending)
    count = known.gang(gang) if known is not None else None
    if count is None:
        said = (pod.gang.min_count for pod in pods.values() if pod.gang is not None and pod.gang.name == gang)
        asked = max((each for each in said if each is not None), default=None)
        return divide(((pod, 1) for pod in pending), min_count=asked, bound=served)
    not_offered = max(0, count.pending - len(pods))
    return divide(
        ((pod, 1) for pod in pending),
        min_count=count.min_count,
        bound=count.bound + served + not_offered,
        held_back=count.held_back,
    )
