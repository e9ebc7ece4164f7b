"""Every reason and counter-offer that people are given, as somebody on call reads them: each names the place and what
is missing there, and what is offered would help. Read the table when you change a word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import Budget, Limit, Operator, PodSpec, Problem, Requirement, solve
from solver.explanation.explain import explain
from solver.explanation.kinds import advice, apply, reason
from solver.explanation.model import ConstraintChange
from solver.explanation.waiting import core_of, ways_of
from solver.model import (
    HOSTNAME,
    HostPort,
    NodeSelectorTerm,
    PodAffinityTerm,
    PodSelector,
    PossibleGroups,
    RunningPods,
    TopologySpread,
)
from tests.support.solver.device_examples import GPUS, claim
from tests.support.solver.problems import TAINT, group, node, pods, spec, wants

BUDGET = Budget(deterministic_seconds=5.0)
web = spec(4000)
app = (("app", "web"),)
apart = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("app", Operator.IN, ("web",)),)))

zone = "topology.kubernetes.io/zone"
in_zone_b = replace(
    spec(4000), node_terms=((NodeSelectorTerm((Requirement(zone, Operator.IN, ("b",)),)),),)
)  # as a bound volume ties its pod
ebs = "attachable-volumes-csi-ebs.csi.aws.com"
shared = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("claim", Operator.EXISTS),)), alone=True)


GPU_IN_A = group("gpu-a", labels={"zone": "a"}, extra={"nvidia.com/gpu": 1})
WIDER = PossibleGroups(
    "provisioner gpu",
    "zone In [a] does not allow b",
    "let zone In [a] allow b in provisioner gpu",
    (replace(GPU_IN_A, id="gpu-b", labels={"zone": "b"}),),
    ("provisioner gpu",),
)
SHORT = PossibleGroups(
    "p4/zone-a",
    "backed off after a shortage until 2026-11-29T01:00:00Z (no capacity)",
    "wait until 2026-11-29T01:00:00Z, when p4/zone-a is tried again",
    (),
)


@pytest.mark.parametrize(
    ("problem", "reasons", "core", "ways"),
    [
        pytest.param(
            Problem((pods("ns/web", 1, web),)),
            ["there are no nodes, and no node groups to open"],
            [],
            [["add a node group whose nodes have 4 cpu"]],
            id="nothing",
        ),
        pytest.param(
            Problem((pods("ns/web", 3, web),), (group("a", max_size=2),)),
            ["node group a is at its maximum size 2"],
            ["node group a may have 2 nodes", "pods like ns/web ask for 4 cpu"],
            [["raise maxSize of a from 2 to 3"], ["lower the cpu request of pods like ns/web from 4 to 2"]],
            id="max size",
        ),
        pytest.param(
            Problem((pods("ns/web", 3, web),), (group("a", max_size=1), group("b", price=2.0, max_size=1))),
            ["2 node groups are at their maximum sizes: a (1), b (1)"],
            ["node group a may have 1 node", "node group b may have 1 node", "pods like ns/web ask for 4 cpu"],
            [
                ["raise maxSize of a from 1 to 2"],
                ["raise maxSize of b from 1 to 2"],
                ["lower the cpu request of pods like ns/web from 4 to 2"],
            ],
            id="two max sizes",
        ),
        pytest.param(
            Problem((pods("ns/web", 3, web),), (group("a"),), limits=(Limit("provisioner team", {"cpu": 9000}),)),
            ["limit provisioner team allows 9 cpu: no room for one more node of a"],
            ["limit provisioner team allows 9 cpu", "pods like ns/web ask for 4 cpu"],
            [
                ["raise the cpu of limit provisioner team from 9 to 12"],
                ["lower the cpu request of pods like ns/web from 4 to 2"],
            ],
            id="limit",
        ),
        pytest.param(
            Problem((pods("ns/web", 5, web),), (group("a", max_size=3),), limits=(Limit("cluster", {"nodes": 2}),)),
            ["limit cluster allows 2 nodes: no room for one more node of a"],
            ["limit cluster allows 2 nodes", "pods like ns/web ask for 4 cpu"],
            [
                ["raise the nodes of limit cluster from 2 to 5", "raise maxSize of a from 3 to 5"],
                ["lower the cpu request of pods like ns/web from 4 to 1333m"],
            ],
            id="limit and size",
        ),
        pytest.param(
            Problem((pods("ns/web", 3, web),), (group("a"),), limits=(Limit("cluster", {"nodes": 1}),)),
            ["limit cluster allows 1 node: no room for one more node of a"],
            ["limit cluster allows 1 node", "pods like ns/web ask for 4 cpu"],
            [
                ["raise the nodes of limit cluster from 1 to 3"],
                ["lower the cpu request of pods like ns/web from 4 to 1333m"],
            ],
            id="limit of one node",
        ),
        pytest.param(
            Problem((pods("ns/big", 1, spec(9000)),), (group("a"),)),
            ["needs 9 cpu, at most 4 is free (node group a)"],
            ["pods like ns/big ask for 9 cpu"],
            [["lower the cpu request of pods like ns/big from 9 to 4"]],
            id="too large",
        ),
        pytest.param(
            Problem((pods("ns/big", 1, spec(90000)),), (group("a"),)),
            ["needs 90 cpu, at most 4 is free (node group a)"],
            ["pods like ns/big ask for 90 cpu"],
            [["add a node group whose nodes have 90 cpu"]],
            id="far too large",
        ),
        pytest.param(
            Problem(
                (pods("ns/big", 1, spec(4000, memory_gib=8)),),
                (group("a", extra={"memory": 2**30}), group("b", cpu=1000, extra={"memory": 16 * 2**30})),
            ),
            ["needs 4 cpu, at most 1 is free (node group b)", "needs 8Gi memory, at most 1Gi is free (node group a)"],
            ["pods like ns/big ask for 4 cpu", "pods like ns/big ask for 8Gi memory"],
            [["lower the cpu request of pods like ns/big from 4 to 1"]],
            id="not together",
        ),
        pytest.param(
            Problem((pods("ns/train", 1, spec(1000, gpu=1)),), (group("a"),), (node("n", 4000),)),
            ["needs 1 nvidia.com/gpu, none is free (node group a and node n)"],
            ["pods like ns/train ask for 1 nvidia.com/gpu"],
            [["add a node group whose nodes have 1 cpu and 1 nvidia.com/gpu"]],
            id="gpu nowhere",
        ),
        pytest.param(
            Problem((pods("ns/train", 2, spec(1000, gpu=1)),), (group("g", extra={"nvidia.com/gpu": 1}, max_size=1),)),
            ["node group g is at its maximum size 1"],
            ["node group g may have 1 node", "pods like ns/train ask for 1 nvidia.com/gpu"],
            [["raise maxSize of g from 1 to 2"]],
            id="gpus taken",
        ),
        pytest.param(
            Problem((pods("ns/web", 1, web),), (group("a", taints=(TAINT,)),)),
            ["taint dedicated=gpu:NoSchedule not tolerated (node group a)"],
            ["pods like ns/web do not tolerate the taint dedicated=gpu:NoSchedule"],
            [["let pods like ns/web tolerate the taint dedicated=gpu:NoSchedule"]],
            id="taint",
        ),
        pytest.param(
            Problem(
                (pods("ns/web", 1, spec(1000, node_selector=(("zone", "b"),))),),
                (group("a", labels={"zone": "a"}),),
                (node("n", 4000, labels={"zone": "a"}),),
            ),
            ["node selector zone=b not met (node group a and node n)"],
            ["pods like ns/web have the node selector zone=b"],
            [["drop the node selector zone=b of pods like ns/web"]],
            id="selector",
        ),
        pytest.param(
            Problem(
                (pods("ns/web", 1, spec(1000, affinity=wants("zone", Operator.IN, "b"))),),
                (group("a", labels={"zone": "a"}),),
            ),
            ["required node affinity not met (node group a)"],
            ["pods like ns/web have a required node affinity"],
            [["drop the required node affinity of pods like ns/web"]],
            id="affinity",
        ),
        pytest.param(
            Problem(
                (pods("ns/train", 8, spec(4000, gpu=1), gang="ns/job"),),
                (group("g", extra={"nvidia.com/gpu": 1}, max_size=7),),
            ),
            [
                "gang ns/job is served whole or not at all, and not all of its 8 pods can be placed",
                "there may be at most 7 more nodes of g, on which pods like ns/train fit",
            ],
            ["node group g may have 7 nodes", "pods like ns/train ask for 1 nvidia.com/gpu"],
            [["raise maxSize of g from 7 to 8"]],
            id="gang",
        ),
        pytest.param(
            Problem((pods("ns/first", 2, web, priority=5), pods("ns/second", 1, web)), (), (node("n", 8000),)),
            ["the free room of 1 existing node that it fits is taken by other pods"],
            ["pods like ns/second ask for 4 cpu", "others"],
            [["add a node group whose nodes have 4 cpu"]],
            id="room taken",
        ),
        pytest.param(
            Problem((pods("ns/web", 3, spec(100, labels=app, pod_anti_affinity=(apart,))),), (group("a", max_size=2),)),
            [
                "node group a is at its maximum size 2",
                "it has a required pod anti-affinity over kubernetes.io/hostname",
            ],
            [
                "pods like ns/web have a required pod anti-affinity over kubernetes.io/hostname",
                "node group a may have 2 nodes",
            ],
            [
                ["drop the required pod anti-affinity over kubernetes.io/hostname of pods like ns/web"],
                ["raise maxSize of a from 2 to 3"],
            ],
            id="anti-affinity",
        ),
        pytest.param(
            Problem((pods("ns/web", 2, spec(100, host_ports=(HostPort(80),))),), (group("a", max_size=1),)),
            ["node group a is at its maximum size 1", "it has the host port 80"],
            ["pods like ns/web have the host port 80", "node group a may have 1 node"],
            [["drop the host port 80 of pods like ns/web"], ["raise maxSize of a from 1 to 2"]],
            id="host port",
        ),
        pytest.param(
            Problem(
                (
                    pods(
                        "ns/web",
                        4,
                        spec(4000, labels=app, topology_spread=(TopologySpread("zone", 1, apart.selector),)),
                    ),
                ),
                (group("a", labels={"zone": "a"}, max_size=1), group("b", labels={"zone": "b"})),
            ),
            ["it has a spread over zone with maxSkew 1", "node group a is at its maximum size 1"],
            [
                "pods like ns/web have a spread over zone with maxSkew 1",
                "node group a may have 1 node",
                "pods like ns/web ask for 4 cpu",
            ],
            [
                ["raise maxSkew of the spread over zone of pods like ns/web from 1 to 2"],
                ["raise maxSize of a from 1 to 2"],
                ["lower the cpu request of pods like ns/web from 4 to 2"],
            ],
            id="spread",
        ),
        pytest.param(
            Problem(
                (
                    pods(
                        "ns/web",
                        1,
                        spec(
                            100,
                            pod_affinity=(
                                PodAffinityTerm("zone", PodSelector((Requirement("app", Operator.IN, ("db",)),))),
                            ),
                        ),
                    ),
                ),
                (group("a", labels={"zone": "a"}),),
            ),
            ["it has a required pod affinity over zone, and no matching pod runs or is planned"],
            ["pods like ns/web have a required pod affinity over zone"],
            [["drop the required pod affinity over zone of pods like ns/web"]],
            id="affinity to nobody",
        ),
        pytest.param(
            Problem(
                (pods("ns/web", 1, spec(100, labels=app)),),
                (),
                (node("n", 4000, running=(RunningPods(PodSpec((), labels=app, pod_anti_affinity=(apart,))),)),),
            ),
            ["excluded by pods that run there (node n)"],
            ["pods that run already have a required pod anti-affinity over kubernetes.io/hostname that counts them"],
            [["move pods that run away whose pod anti-affinity over kubernetes.io/hostname counts them"]],
            id="runs against",
        ),
        pytest.param(
            Problem((pods("ns/web", 1, web),), (group("a"),), daemon_sets=(spec(100),)),
            ["needs 4 cpu, at most 3900m is free beside DaemonSets (node group a)"],
            ["the pods of the DaemonSet take their share of new nodes", "pods like ns/web ask for 4 cpu"],
            [["keep the DaemonSet off new nodes"], ["lower the cpu request of pods like ns/web from 4 to 3900m"]],
            id="daemon",
        ),
        pytest.param(
            Problem(
                (pods("ns/train", 3, spec(4000), gang="ns/job"),),
                (group("g"),),
                limits=(Limit("cluster", {"cpu": 9000}),),
            ),
            [
                "gang ns/job is served whole or not at all, and not all of its 3 pods can be placed",
                "there may be at most 2 more nodes of g, on which pods like ns/train fit (limit cluster)",
            ],
            ["limit cluster allows 9 cpu", "pods like ns/train ask for 4 cpu"],
            [
                ["raise the cpu of limit cluster from 9 to 12"],
                ["lower the cpu request of pods like ns/train from 4 to 2"],
            ],
            id="gang under a limit",
        ),
        pytest.param(
            Problem((pods("ns/db", 1, in_zone_b),), (group("a", labels={zone: "a"}),)),
            [f"out of reach of its volumes or devices, which need {zone} in (b) (node group a)"],
            ["pods like ns/db use volumes or devices that need topology.kubernetes.io/zone in (b)"],
            [[f"add a node group whose nodes have 4 cpu and the label {zone}=b"]],
            id="volume in another zone",
        ),
        pytest.param(
            Problem(
                (pods("ns/db", 2, in_zone_b),),
                (group("a", labels={zone: "a"}), group("b", labels={zone: "b"}, max_size=1)),
            ),
            [
                "node group b is at its maximum size 1",
                f"out of reach of its volumes or devices, which need {zone} in (b) (node group a)",
            ],
            [
                "pods like ns/db use volumes or devices that need topology.kubernetes.io/zone in (b)",
                "node group b may have 1 node",
                "pods like ns/db ask for 4 cpu",
            ],
            [["raise maxSize of b from 1 to 2"], ["lower the cpu request of pods like ns/db from 4 to 2"]],
            id="volume in a full zone",
        ),
        pytest.param(
            Problem(
                (pods("ns/db", 1, replace(web, unschedulable='persistentvolumeclaim "x" not found')),), (group("a"),)
            ),
            ['persistentvolumeclaim "x" not found'],
            ['pods like ns/db cannot be scheduled for now: persistentvolumeclaim "x" not found'],
            [['resolve what keeps pods like ns/db waiting: persistentvolumeclaim "x" not found']],
            id="volume that is not there",
        ),
        pytest.param(
            Problem(
                (pods("ns/db", 1, replace(web, requests=((ebs, 30), ("cpu", 100)))),), (group("a", extra={ebs: 25}),)
            ),
            ["needs 30 volume attachments of ebs.csi.aws.com, at most 25 is free (node group a)"],
            ["pods like ns/db ask for 30 volume attachments of ebs.csi.aws.com"],
            [["add a node group whose nodes have 30 volume attachments of ebs.csi.aws.com and 100m cpu"]],
            id="more volumes than a node attaches",
        ),
        pytest.param(
            Problem(
                (pods("ns/db", 2, replace(web, requests=((ebs, 20), ("cpu", 100)))),),
                (group("a", extra={ebs: 25}, max_size=1),),
                (node("n", 4000),),
            ),
            [
                "node group a is at its maximum size 1",
                "needs 20 volume attachments of ebs.csi.aws.com, none is free (node n)",
            ],
            ["node group a may have 1 node", "pods like ns/db ask for 20 volume attachments of ebs.csi.aws.com"],
            [["raise maxSize of a from 1 to 2"]],
            id="attachments taken",
        ),
        pytest.param(
            Problem((pods("ns/web", 3, spec(2000, labels=(("claim", ""),), pod_affinity=(shared,))),), (group("a"),)),
            ["it has a claim shared with other pods, all in one kubernetes.io/hostname"],
            [
                "pods like ns/web have a claim shared with other pods, all in one kubernetes.io/hostname",
                "pods like ns/web ask for 2 cpu",
            ],
            [["lower the cpu request of pods like ns/web from 2 to 1333m"]],
            id="shared claim",
        ),
        pytest.param(
            Problem((pods("ns/train", 1, spec(100, claims=claim(count=40))),), (group("g", devices=GPUS),)),
            [
                "request gpu of its resource claims: asks for 40 devices, a claim can have 32 (node group g)",
            ],
            ["pods like ns/train claim 40 devices by request gpu"],
            [],
            id="devices below the floor",
        ),
        pytest.param(
            Problem((pods("ns/train", 2, spec(100, claims=claim(count=8))),), (group("g", devices=GPUS, max_size=1),)),
            ["node group g is at its maximum size 1"],
            ["pods like ns/train claim 8 devices by request gpu", "node group g may have 1 node"],
            [
                ["raise maxSize of g from 1 to 2"],
                ["claim fewer devices by request gpu of pods like ns/train: 4, not 8"],
            ],
            id="devices taken",
        ),
        pytest.param(
            Problem(
                (pods("ns/train", 2, spec(1000, gpu=1, node_selector=(("zone", "b"),))),),
                (group("a", labels={"zone": "a"}), group("b", labels={"zone": "b"}), GPU_IN_A),
            ),
            [
                "needs 1 nvidia.com/gpu, none is free (2 of 3 node groups)",
                "node selector zone=b not met (2 of 3 node groups)",
            ],
            ["pods like ns/train have the node selector zone=b", "pods like ns/train ask for 1 nvidia.com/gpu"],
            [["drop the node selector zone=b of pods like ns/train"]],
            id="wrong zone and no gpu",
        ),
        pytest.param(
            Problem(
                (pods("ns/train", 2, spec(1000, gpu=1, node_selector=(("zone", "b"),))),),
                (group("a", labels={"zone": "a"}), group("b", labels={"zone": "b"}), GPU_IN_A),
                limits=(Limit("provisioner gpu", {"nodes": 1}, node_groups=frozenset({"gpu-a"})),),
                possible=(WIDER,),
            ),
            [
                "zone In [a] does not allow b (node group gpu-b)",
                "needs 1 nvidia.com/gpu, none is free (2 of 4 node groups)",
                "node selector zone=b not met (2 of 4 node groups)",
            ],
            [
                "pods like ns/train have the node selector zone=b",
                "zone In [a] does not allow b (provisioner gpu)",
                "pods like ns/train ask for 1 nvidia.com/gpu",
            ],
            [["let zone In [a] allow b in provisioner gpu", "raise the nodes of limit provisioner gpu from 1 to 2"]],
            id="a pool to widen, and its limit, rather than the selector",
        ),
        pytest.param(
            Problem(
                (pods("ns/train", 1, spec(1000, gpu=1)),),
                (group("a"),),
                possible=(replace(SHORT, node_groups=(GPU_IN_A,)),),
            ),
            [
                "backed off after a shortage until 2026-11-29T01:00:00Z (no capacity) (node group gpu-a)",
                "needs 1 nvidia.com/gpu, none is free (node group a)",
            ],
            [
                "backed off after a shortage until 2026-11-29T01:00:00Z (no capacity) (p4/zone-a)",
                "pods like ns/train ask for 1 nvidia.com/gpu",
            ],
            [["wait until 2026-11-29T01:00:00Z, when p4/zone-a is tried again"]],
            id="shortage",
        ),
        pytest.param(
            Problem((pods("ns/train", 1, spec(100, claims=claim())),), (group("g"),)),
            ["no devices for its resource claims (node group g)"],
            ["pods like ns/train claim 1 device by request gpu"],
            [],
            id="devices nowhere",
        ),
    ],
)
def test_what_people_are_told(problem: Problem, reasons: list[str], core: list[str], ways: list[list[str]]) -> None:
    plan = solve(problem, BUDGET)
    assert [each for unplaced in plan.unplaced for each in unplaced.reasons] == reasons
    (why,) = explain(problem, plan, BUDGET).unserved
    assert [reason(each) if isinstance(each, ConstraintChange) else "others" for each in why.core] == core
    assert [[advice(change) for change in way.changes] for way in why.ways] == ways
    assert ways_of(why)
    assert core_of(why)
    for way in why.ways:
        served = solve(apply(problem, way.changes), BUDGET)
        assert sum(each.count for each in served.unplaced) < sum(each.count for each in plan.unplaced), "it would help"
        assert all(change.after for change in way.changes if change.kind in ("request", "device_request"))
