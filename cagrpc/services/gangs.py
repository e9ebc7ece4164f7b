"""Gangs in a scale-up of the autoscaler: which options would serve only a part of one, and as what their pods are
ranked. Which pods of a gang must be whole is `wire.gangs`' rule; here it meets what a request shows of the gang.

CA leaves out pods that fit on nodes that stand or come, and a request has no running pods. So without a cluster view a
gang is what the request has of it; with one, pods that CA does not offer count as served by what stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.wire.expander import Option
from cagrpc.wire.gangs import Division, GangCounts, KnownGangs, divide, incomplete
from cagrpc.wire.pods import Pod

_LONGEST_NAME = 400  # of what anybody may send; a kind, a namespace and a name are shorter
_PLAN = "no option covers them: a gang that needs several node groups needs drive: plan"


class OfferedGangs:
    """The gangs of one request. `in_flight` are keys of pods that are served already."""

    def __init__(
        self, options: Sequence[Option], in_flight: AbstractSet[str] = frozenset(), known: KnownGangs | None = None
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
        self._covered = {
            gang for gang, needed in self._needed.items() if any(len(s.get(gang, ())) >= needed for s in shares)
        }

    def _share(self, option: Option) -> Mapping[str, set[str]]:
        """The keys of an option's pods by gang."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        if not self._divisions:
            return found
        for pod in option.pods:
            if pod.gang is not None and pod.key not in self._in_flight:
                found[pod.gang.name].add(pod.key)
        return found

    def why_left_out(self, option: Option) -> str:
        """Why the option would break a gang, for people; empty where it would not."""
        for gang, keys in self._share(option).items():
            division, needed, name = self._divisions[gang], self._needed[gang], gang[:_LONGEST_NAME]
            if division.missing:
                return f"has pods of a gang that waits for others: {incomplete(name, division)}"
            if len(keys) < needed:
                hint = "" if gang in self._covered else f"; {_PLAN}"
                return f"serves {len(keys)} pods of gang {name}, of which {needed} must be served together{hint}"
        return ""

    def ranked(self, options: Sequence[Option], open_: Sequence[Option]) -> tuple[tuple[Pod, ...], ...]:
        """The pods of each of `options` as the planner is to see them: without those of incomplete gangs, those in
        flight and those that consume ProvisioningRequests; of a gang with a minimum so many are the gang as must be
        whole, such as all of the `open_` options that have the gang serve. Where these have too few in common, its pods
        are ranked as ordinary ones."""
        whole = self._whole(open_)
        seen: dict[str, Pod] = {}

        def as_ranked(pod: Pod) -> Pod:
            if pod.gang is None or pod.key in whole:
                return pod
            return seen.setdefault(pod.key, replace(pod, gang=None))

        return tuple(
            tuple(as_ranked(pod) for pod in option.pods if not (self._served(pod) or self._waits(pod)))
            for option in options
        )

    def _served(self, pod: Pod) -> bool:
        return pod.consumer or pod.key in self._in_flight

    def _waits(self, pod: Pod) -> bool:
        return pod.gang is not None and self._divisions[pod.gang.name].missing > 0

    def _whole(self, open_: Sequence[Option]) -> AbstractSet[str]:
        """Keys of the pods that are ranked as gangs."""
        shares = [self._share(option) for option in open_]
        found: set[str] = set()
        for gang, division in self._divisions.items():
            in_order = [pod.key for part in (division.whole, division.others) for pod, _ in part]
            of_options = [share[gang] for share in shares if share.get(gang)]
            common = set(in_order).intersection(*of_options)
            shared = [key for key in in_order if key in common]
            if len(shared) >= self._needed[gang]:
                found.update(shared[: self._needed[gang]])
        return found


def _division(
    gang: str, pods: Mapping[str, Pod], in_flight: AbstractSet[str], known: KnownGangs | None
) -> Division[Pod]:
    pending = sorted(
        (pod for pod in pods.values() if pod.key not in in_flight), key=lambda pod: (pod.created_at_seconds, pod.name)
    )
    served = len(pods) - len(pending)
    count = known.gang(gang) if known is not None else None
    if count is None:
        said = GangCounts()
        for pod in pods.values():
            if pod.gang is not None:
                said.add_pods(pod.gang)
        return divide(((pod, 1) for pod in pending), min_count=said.min_count(gang), bound=served)
    not_offered = max(0, count.pending - len(pods))
    return divide(
        ((pod, 1) for pod in pending),
        min_count=count.min_count,
        bound=count.bound + served + not_offered,
        held_back=count.held_back,
    )
