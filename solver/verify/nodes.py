"""The checker's part for single nodes: whether each pod may run there, all of them fit, and no host ports clash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from solver.model import HOSTNAME, PODS, HostPort, Node, NodeGroup, PodAffinityTerm, PodSpec, Problem, SharedVolume
from solver.model.errors import UncheckedPlanError
from solver.verify.devices import CheckedClaims, finds_devices
from solver.verify.filters import clash, counts, fault
from solver.verify.places import CheckedNodes, CheckedPlaces


def faults_on_nodes(problem: Problem, places: CheckedPlaces, claims: CheckedClaims | None = None) -> Iterator[str]:
    """Yield one sentence per broken constraint between a node and its pods. With `claims` of the same classes what is
    known of other plans is not looked at again. Raises `UncheckedPlanError` in the end, with what is to be left out on
    account of all nodes."""
    needs = [_needs(spec) for spec in places.specs]
    any_ports = any(spec.host_ports for spec in places.specs)
    claims = claims or CheckedClaims(places.specs)
    templates = {group.id: _template(group, problem) for group in problem.node_groups}
    daemons_of = {name: daemons for name, (_, daemons) in templates.items() if daemons}
    closed = _closed_by_daemons(places, daemons_of) if daemons_of else frozenset()
    fine: dict[int, set[int]] = defaultdict(set)
    """What is to be seen of a node -> classes that may run there."""
    unchecked: frozenset[int] = frozenset()
    for place in places.all:
        where = place.where
        if place.count <= 0:
            yield f"{place}: {place.count} nodes"
        available, daemons = templates[where.id] if isinstance(where, NodeGroup) else (where.free, ())
        if place.pods:
            yield from _eligible(place, places, fine)
            yield from _resources(place, places, needs, available)
            if any_ports:
                yield from _ports(place, places, daemons)
            if closed and isinstance(where, NodeGroup):
                yield from _apart_from_daemons(place, places, closed)
            try:
                lacking = claims.fault(where.devices, place.pods, daemons)
            except UncheckedPlanError as error:
                unchecked |= error.pod_classes
            else:
                yield from () if lacking is None else (f"{place}: {lacking}",)
    if unchecked:
        raise UncheckedPlanError(unchecked)


def _eligible(place: CheckedNodes, places: CheckedPlaces, fine: dict[int, set[int]]) -> Iterator[str]:
    sight = places.sights.of(place.where)
    known = fine[sight]
    for index, count in place.pods.items():
        if index not in known:
            reason = places.sights.why_not(index, sight)
            if reason is None:
                known.add(index)
            else:
                yield f"{place} holds class {index}: {reason}"
        if count < 1:
            yield f"{place} holds {count} pods of class {index}"


def _needs(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """Return what each pod takes of its node, without volumes that others may have attached there."""
    needs = {**dict(spec.requests), PODS: 1}
    for resource, _ in spec.shared_volumes:
        needs[resource] -= 1
    return tuple(needs.items())


def _resources(
    place: CheckedNodes,
    places: CheckedPlaces,
    needs: Sequence[tuple[tuple[str, int], ...]],
    available: Mapping[str, int],
) -> Iterator[str]:
    taken: dict[str, int] = defaultdict(int)
    volumes: set[SharedVolume] = set()
    for index, count in place.pods.items():
        for name, amount in needs[index]:
            taken[name] += amount * count
        volumes.update(places.specs[index].shared_volumes)
    for resource, _ in volumes.difference(place.where.volumes if isinstance(place.where, Node) else ()):
        taken[resource] += 1
    for name, amount in taken.items():
        if amount > available.get(name, 0):
            yield f"{place} is over-full: {name} by {amount - available.get(name, 0)}"


def _template(group: NodeGroup, problem: Problem) -> tuple[Mapping[str, int], tuple[PodSpec, ...]]:
    """Return what a new node of the group has free for pods, and the daemons that run there."""
    left = dict(group.allocatable)
    runs: list[PodSpec] = []
    taken: list[tuple[dict[str, int], list[PodSpec]]] = []
    """What daemons of which any two want one host port take, whichever of them is there, and these."""
    for daemon in problem.daemon_sets:
        if fault(daemon, group.labels, group.taints, "") is None:
            if daemon.claims and not finds_devices(group.devices, daemon, runs):
                continue
            taking, alike = next((each for each in taken if _exclude_all(daemon, each[1])), ({}, []))
            largest = {name: max(amount, taking.get(name, 0)) for name, amount in (*daemon.requests, (PODS, 1))}
            if all(group.allocatable.get(name, 0) >= amount for name, amount in (*daemon.requests, (PODS, 1))):
                # one that does not fit waits, and takes nothing from the node; of several that do not fit together
                # any may be there, and nothing is left
                less = {name: left.get(name, 0) + taking.get(name, 0) - amount for name, amount in largest.items()}
                left.update(less)
                taking.update(largest)
                alike.append(daemon)
                runs.append(daemon)
                if len(alike) == 1:
                    taken.append((taking, alike))
    return {name: max(0, amount) for name, amount in left.items()}, tuple(runs)


def _exclude_all(daemon: PodSpec, others: Sequence[PodSpec]) -> bool:
    return all(any(clash(mine, its) for mine in daemon.host_ports for its in each.host_ports) for each in others)


def _closed_by_daemons(
    places: CheckedPlaces, daemons_of: Mapping[str, tuple[PodSpec, ...]]
) -> AbstractSet[tuple[PodAffinityTerm, str]]:
    """Return the domains of required anti-affinity with a daemon that it counts, on a new node: there it comes before
    pods of new nodes."""
    terms = {term for spec in places.specs for term in spec.pod_anti_affinity}
    closed: set[tuple[PodAffinityTerm, str]] = set()
    new = {place.where.id: place for place in places.all if isinstance(place.where, NodeGroup)}
    for term in terms:
        for name, place in new.items():
            domain = _domain(term, place)
            if domain is not None and (term, domain) not in closed:
                mine = daemons_of.get(name, ())
                if any(counts(term.selector, each.namespace, dict(each.labels)) for each in mine):
                    closed.add((term, domain))
    return closed


def _domain(term: PodAffinityTerm, place: CheckedNodes) -> str | None:
    """Return the value of the term's key; of a new node without a name, its group's id."""
    if term.topology_key != HOSTNAME:
        return place.where.labels.get(term.topology_key)
    return place.where.id if isinstance(place.where, NodeGroup) else None


def _apart_from_daemons(
    place: CheckedNodes, places: CheckedPlaces, closed: AbstractSet[tuple[PodAffinityTerm, str]]
) -> Iterator[str]:
    """Yield a sentence per class with required anti-affinity that a domain of the node is closed to."""
    for index in place.pods:
        for term in places.specs[index].pod_anti_affinity:
            if (term, _domain(term, place)) in closed:
                yield f"{place} holds class {index} beside a daemon that its anti-affinity counts"


def _ports(place: CheckedNodes, places: CheckedPlaces, daemons: tuple[PodSpec, ...]) -> Iterator[str]:
    """Yield one sentence per host port clash that involves a planned pod."""
    planned = [(index, count) for index, count in place.pods.items() if places.specs[index].host_ports]
    if not planned:
        return
    held: dict[tuple[int, str], list[tuple[HostPort, str]]] = defaultdict(list)
    for who, spec in (
        *(("a running pod", running.spec) for running in place.running),
        *(("a daemon", daemon) for daemon in daemons),
    ):
        for port in spec.host_ports:
            held[port.port, port.protocol].append((port, who))
    for index, count in planned:
        mine = places.specs[index].host_ports
        for port in mine:
            others = held[port.port, port.protocol]
            rivals = [who for other, who in others if clash(port, other)]
            rivals += [f"class {index}"] * (count > 1)
            for rival in rivals:
                yield f"{place}: class {index} and {rival} both take host port {port.port}/{port.protocol}"
        for port in mine:  # only now: the ports of one pod do not exclude each other
            held[port.port, port.protocol].append((port, f"class {index}"))
