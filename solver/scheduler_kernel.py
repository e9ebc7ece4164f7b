"""The kube-scheduler's loop, compiled: one pod after the other, filters, scores, the best node. Arrays in, arrays out;
what they mean is made in `scheduler_tables` and `scheduler_terms`.

Facts are of Kubernetes 1.36 (pkg/scheduler: schedule_one.go and the default plugins), weights those of its default
profile. Scores are integers from 0 to 100, rounded as there.
"""

from __future__ import annotations

import math

import numpy as np

from solver.compiled import compiled
from solver.reduce import Bools, Ints

HIGHEST = 100
"""The best score of one plugin (framework.MaxNodeScore)."""
_FEWEST_NODES = 100
"""Nodes that are looked at in any case (minFeasibleNodesToFind),"""
_LEAST_PERCENTAGE = 5
"""and the share of all of them (minFeasibleNodesPercentageToFind)."""

Nodes = tuple[Ints, Ints, Ints, Ints, Ints]
"""Per node: its look, what is free (x resources), and allocatable, requested and requested at least (x cpu, memory)."""
Classes = tuple[Ints, Ints, Ints, Bools, Ints, Ints]
"""Per class: requests (x resources), requests and least requests (x cpu, memory); and per look whether it may run
there, soft taints that it does not tolerate, and the weight of the preferred node affinity that is met."""
Lists = tuple[Ints, Ints]
"""Rows of several numbers per class: where those of a class begin, and all rows."""
Terms = tuple[Ints, Ints, Ints, Ints, Bools, Ints, Lists]
"""Per term its topology key, where its counts begin, how many there are, and its mask (-1 for none); masks x nodes;
keys x nodes, the domain or -1; and what a pod of each class adds to which term."""
Asked = tuple[Lists, Lists, Bools, Lists, Lists, Bools, Lists]
"""What each class asks of other pods: terms that keep it away where they count a pod; those that must, and whether it
may be the first one; hard spread (term, maxSkew, minDomains, itself counted); soft spread (term, maxSkew), and whether
nodes without all its keys are passed over; preferred terms (term, weight)."""


@compiled
def enough_nodes(nodes: int, percentage: int) -> int:
    """How many feasible nodes end the search; 0 per cent is the scheduler's own choice."""
    if nodes < _FEWEST_NODES:
        return nodes
    if percentage == 0:
        percentage = max(_LEAST_PERCENTAGE, 50 - nodes // 125)
    return max(_FEWEST_NODES, nodes * percentage // 100)


@compiled
def _rows(lists: Lists, pod_class: int) -> Ints:
    return lists[1][lists[0][pod_class] : lists[0][pod_class + 1]]


@compiled
def _add(pod_class: int, node: int, pods: int, terms: Terms, counts: Ints) -> None:
    """Pods of the class have come to the node."""
    keys, starts, _, masked, masks, domains, adds = terms
    for row in _rows(adds, pod_class):
        term = row[0]
        domain = domains[keys[term], node]
        if domain >= 0 and (masked[term] < 0 or masks[masked[term], node]):
            counts[starts[term] + domain] += row[1] * pods


@compiled
def put(pod_class: int, node: int, pods: int, nodes: Nodes, classes: Classes, terms: Terms, counts: Ints) -> None:
    """Pods of one class on a node, whatever the filters say."""
    for r in range(nodes[1].shape[1]):
        nodes[1][node, r] -= pods * classes[0][pod_class, r]
    for r in range(2):
        nodes[3][node, r] += pods * classes[1][pod_class, r]
        nodes[4][node, r] += pods * classes[2][pod_class, r]
    _add(pod_class, node, pods, terms, counts)


@compiled
def put_running(running: Ints, terms: Terms, counts: Ints) -> None:
    """Rows (member, node, pods) of pods whose requests are in what is free already."""
    for row in running:
        _add(row[0], row[1], row[2], terms, counts)


@compiled
def put_bound(bound: Ints, nodes: Nodes, classes: Classes, terms: Terms, counts: Ints) -> None:
    """Rows (class, node, pods) of pods that are bound before the scheduler sees the nodes."""
    for row in bound:
        put(row[0], row[1], row[2], nodes, classes, terms, counts)


@compiled
def _emptiest(row: Ints, terms: Terms, counts: Ints, present: Ints) -> int:
    """Counted pods of the emptiest domain of a hard spread; domains are those of the nodes that it looks at."""
    start = terms[1][row[0]]
    least, domains = np.iinfo(np.int64).max, 0
    for i in range(start, start + terms[2][row[0]]):
        if present[i] > 0:
            domains += 1
            least = min(least, counts[i])
    return 0 if domains < row[2] or domains == 0 else least


@compiled
def _is_first(needs: Ints, starts: Ints, sizes: Ints, counts: Ints) -> bool:
    """Whether no pod that it must be beside is anywhere yet."""
    for row in needs:
        for i in range(starts[row[0]], starts[row[0]] + sizes[row[0]]):
            if counts[i] > 0:
                return False
    return True


@compiled
def _let_in(
    node: int, rejects: Ints, needs: Ints, first: bool, hard: Ints, emptiest: Ints,
    keys: Ints, starts: Ints, domains: Ints, counts: Ints,
) -> bool:  # fmt: skip
    """The filters between pods."""
    for i in range(len(rejects)):
        domain = domains[keys[rejects[i, 0]], node]
        if domain >= 0 and counts[starts[rejects[i, 0]] + domain] > 0:
            return False
    for i in range(len(needs)):
        domain = domains[keys[needs[i, 0]], node]
        if domain < 0 or (not first and counts[starts[needs[i, 0]] + domain] == 0):
            return False
    for i in range(len(hard)):
        domain = domains[keys[hard[i, 0]], node]
        if domain < 0 or counts[starts[hard[i, 0]] + domain] + hard[i, 3] - emptiest[i] > hard[i, 1]:
            return False
    return True


@compiled
def _feasible(
    pod_class: int, start: int, order: Ints, here: Bools, limit: int,
    nodes: Nodes, classes: Classes, terms: Terms, counts: Ints, present: Ints, asked: Asked, found: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Nodes that pass the filters, written to `found`: how many, and how many were looked at."""
    looks, free, fits, requests = nodes[0], nodes[1], classes[3][pod_class], classes[0][pod_class]
    keys, starts, sizes, domains = terms[0], terms[1], terms[2], terms[5]
    rejects, needs, hard = _rows(asked[0], pod_class), _rows(asked[1], pod_class), _rows(asked[3], pod_class)
    between = len(rejects) + len(needs) + len(hard) > 0
    first = asked[2][pod_class] and _is_first(needs, starts, sizes, counts)
    emptiest = np.zeros(len(hard), np.int64)
    for i in range(len(hard)):
        emptiest[i] = _emptiest(hard[i], terms, counts, present)
    size, at = 0, start
    for looked in range(len(order)):
        node = order[at]
        at = at + 1 if at + 1 < len(order) else 0
        if not here[node] or not fits[looks[node]]:
            continue
        room = True
        for r in range(len(requests)):
            # What is not asked for may be overdrawn.
            if requests[r] > free[node, r] and requests[r] > 0:
                room = False
                break
        if not room:
            continue
        if between and not _let_in(node, rejects, needs, first, hard, emptiest, keys, starts, domains, counts):
            continue
        if size == limit:
            return size, looked
        found[size] = node
        size += 1
    return size, len(order)


@compiled
def _balance(cpu: int, memory: int, all_cpu: int, all_memory: int) -> int:
    """How evenly cpu and memory are used."""
    deviation = 0.0
    if all_cpu > 0 and all_memory > 0:
        deviation = abs(min(1.0, cpu / all_cpu) - min(1.0, memory / all_memory)) / 2
    return int((1.0 - deviation) * HIGHEST)


@compiled
def _resource_scores(
    pod_class: int, found: Ints, most: bool, nodes: Nodes, classes: Classes, scores: Ints
) -> None:  # fmt: skip
    """NodeResourcesFit and NodeResourcesBalancedAllocation, weight 1 each, cpu and memory alike."""
    allocatable, requested, at_least = nodes[2], nodes[3], nodes[4]
    cpu, memory = classes[1][pod_class, 0], classes[1][pod_class, 1]
    for i in range(len(found)):
        node, total, weights = found[i], 0, 0
        for r in range(2):
            capacity = allocatable[node, r]
            if capacity > 0:
                taken = at_least[node, r] + classes[2][pod_class, r]
                if most:
                    total += min(taken, capacity) * HIGHEST // capacity
                elif taken <= capacity:
                    total += (capacity - taken) * HIGHEST // capacity
                weights += 1
        scores[i] = total // weights if weights else 0
        if cpu > 0 or memory > 0:  # a pod without requests is not balanced
            has, holds = allocatable[node, 0], allocatable[node, 1]
            before = _balance(requested[node, 0], requested[node, 1], has, holds)
            after = _balance(requested[node, 0] + cpu, requested[node, 1] + memory, has, holds)
            scores[i] += HIGHEST // 2 + (HIGHEST // 2 + after - before) // 2


@compiled
def _look_scores(pod_class: int, found: Ints, nodes: Nodes, classes: Classes, scores: Ints) -> None:
    """TaintToleration, weight 3, and NodeAffinity, weight 2, added to `scores`."""
    looks, soft, liked = nodes[0], classes[4][pod_class], classes[5][pod_class]
    most_soft, most_liked = 0, 0
    for i in range(len(found)):
        most_soft = max(most_soft, soft[looks[found[i]]])
        most_liked = max(most_liked, liked[looks[found[i]]])
    for i in range(len(found)):
        if most_soft > 0:
            scores[i] += 3 * (HIGHEST - HIGHEST * soft[looks[found[i]]] // most_soft)
        if most_liked > 0:
            scores[i] += 2 * (HIGHEST * liked[looks[found[i]]] // most_liked)


@compiled
def _spread_scores(  # noqa: C901, PLR0912 - loops, flat for speed
    rows: Ints, strict: bool, found: Ints, terms: Terms, counts: Ints, stamps: Ints, now: int, scores: Ints
) -> None:  # fmt: skip
    """PodTopologySpread, weight 2, added to `scores`. `stamps` are of domains, below `now`."""
    keys, starts, domains = terms[0], terms[1], terms[5]
    raw = np.zeros(len(found))
    ignored = np.zeros(len(found), np.bool_)
    for i in range(len(found)) if strict else range(0):
        for row in rows:
            ignored[i] |= domains[keys[row[0]], found[i]] < 0
    for row in rows:
        key, begin, several, nowhere = keys[row[0]], starts[row[0]], 0, 0
        for i in range(len(found)):
            domain = domains[key, found[i]]
            if ignored[i]:
                continue
            if domain < 0:
                nowhere = 1
            elif stamps[domain] != now:
                stamps[domain] = now
                several += 1
        now += 1
        weight = math.log(several + nowhere + 2.0)
        for i in range(len(found)):
            domain = domains[key, found[i]]
            if not ignored[i] and domain >= 0:
                raw[i] += counts[begin + domain] * weight + (row[1] - 1)
    least, most = np.iinfo(np.int64).max, 0
    for i in range(len(found)):
        raw[i] = math.floor(raw[i] + 0.5)
        if not ignored[i]:
            least, most = min(least, int(raw[i])), max(most, int(raw[i]))
    for i in range(len(found)):
        if not ignored[i]:
            scores[i] += 2 * (HIGHEST if most == 0 else HIGHEST * (most + least - int(raw[i])) // most)


@compiled
def _liking_scores(rows: Ints, found: Ints, terms: Terms, counts: Ints, scores: Ints) -> None:
    """InterPodAffinity, weight 2, added to `scores`."""
    keys, starts, domains = terms[0], terms[1], terms[5]
    raw = np.zeros(len(found), np.int64)
    for row in rows:
        for i in range(len(found)):
            domain = domains[keys[row[0]], found[i]]
            if domain >= 0:
                raw[i] += counts[starts[row[0]] + domain] * row[1]
    least, most = raw.min(), raw.max()
    for i in range(len(found)) if most > least else range(0):
        scores[i] += 2 * int(HIGHEST * ((raw[i] - least) / (most - least)))


@compiled
def _best(found: Ints, scores: Ints) -> int:
    """The node with the highest score, one of them at random."""
    best, ties = 0, 1
    for i in range(1, len(found)):
        if scores[i] > scores[best]:
            best, ties = i, 1
        elif scores[i] == scores[best]:
            ties += 1
            if np.random.randint(ties) == 0:  # noqa: NPY002 - the only generator that compiled code has
                best = i
    return int(found[best])


@compiled
def _arrive(node: int, here: Bools, hard: Ints, terms: Terms, present: Ints) -> None:
    """The node is there: its domains are, too."""
    keys, starts, _, masked, masks, domains, _ = terms
    here[node] = True
    for row in hard:
        term = row[0]
        domain = domains[keys[term], node]
        if domain >= 0 and (masked[term] < 0 or masks[masked[term], node]):
            present[starts[term] + domain] += 1


@compiled
def schedule(  # noqa: C901, PLR0912, PLR0915 - one loop, flat for speed
    queue: Ints, order: Ints, arrives: Ints, seed: int, most: bool, percentage: int,
    nodes: Nodes, classes: Classes, terms: Terms, counts: Ints, present: Ints, asked: Asked, waits: Bools,
) -> Ints:  # fmt: skip
    """The node of each pod of `queue` (classes in order), -1 for those that stay pending. `nodes` and `counts` are
    those before, and are changed.

    `arrives` says per node after how many attempts it is there. A pod is tried once a node has come on which it may
    run, and again when another one comes, behind those that were not tried meanwhile: that is what the scheduler's
    queueing hints make of its queue. They do not ask whether a node whose taint is lifted is large enough. `waits` are
    the classes for which a pod on another node can make the difference.
    """
    np.random.seed(seed)  # noqa: NPY002
    number = len(order)
    limit = enough_nodes(number, percentage)
    placed, pending = np.full(len(queue), -1, np.int64), np.arange(len(queue))
    here, coming = np.zeros(number, np.bool_), np.argsort(arrives)
    arrived, attempts, start, now = 0, 0, 0, 1
    found, scores = np.empty(number, np.int64), np.zeros(number, np.int64)
    stamps = np.zeros(terms[2].max() + 1 if len(terms[2]) else 1, np.int64)
    hopes, full = np.zeros(len(classes[0]), np.bool_), np.zeros(len(classes[0]), np.bool_)
    again = np.empty_like(pending)
    while len(pending) > 0:
        kept, turned_away, before = 0, 0, arrived
        for at in range(len(pending)):
            pod = pending[at]
            pod_class = queue[pod]
            while arrived < number and arrives[coming[arrived]] <= attempts:
                _arrive(coming[arrived], here, asked[3][1], terms, present)
                _hope(coming[arrived], nodes, classes, hopes, full)
                arrived += 1
            if not hopes[pod_class]:
                pending[kept] = pod
                kept += 1
                continue
            attempts += 1
            size = 0
            if not full[pod_class]:
                size, looked = _feasible(
                    pod_class, start, order, here, limit, nodes, classes, terms, counts, present, asked, found
                )
                start = (start + looked) % max(1, number)
            if size == 0:
                full[pod_class] = not waits[pod_class]
                again[turned_away] = pod
                turned_away += 1
                continue
            among = found[:size]
            if size > 1:
                _resource_scores(pod_class, among, most, nodes, classes, scores)
                _look_scores(pod_class, among, nodes, classes, scores)
                rows = _rows(asked[4], pod_class)
                if len(rows) > 0:
                    _spread_scores(rows, asked[5][pod_class], among, terms, counts, stamps, now, scores)
                    now += len(rows)
                rows = _rows(asked[6], pod_class)
                if len(rows) > 0:
                    _liking_scores(rows, among, terms, counts, scores)
                placed[pod] = _best(among, scores)
            else:
                placed[pod] = among[0]
            put(pod_class, placed[pod], 1, nodes, classes, terms, counts)
        landed = len(pending) - kept - turned_away
        pending[kept : kept + turned_away] = again[:turned_away]
        pending = pending[: kept + turned_away]
        for pod_class in range(len(hopes)):
            hopes[pod_class] &= not full[pod_class]
        if landed == 0 and arrived == before:
            if arrived == number:
                break
            attempts = max(attempts, arrives[coming[arrived]])
    return placed


@compiled
def _hope(node: int, nodes: Nodes, classes: Classes, hopes: Bools, full: Bools) -> None:
    """Classes that may run on a node are tried again as it comes, and in vain where it has no room for them."""
    for pod_class in range(len(hopes)):
        if classes[3][pod_class, nodes[0][node]]:
            hopes[pod_class] = True
            if full[pod_class]:
                room = True
                for r in range(nodes[1].shape[1]):
                    if classes[0][pod_class, r] > nodes[1][node, r] and classes[0][pod_class, r] > 0:
                        room = False
                full[pod_class] = not room
