"""Pods that workloads still have to create: how many are expected, of which class, and for how long."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view import expected as view_expected
from cagrpc.cluster.view.expected import MOST, MOST_OF_ONE
from cagrpc.cluster.view.model import DEPLOYMENTS, JOB_SETS
from cagrpc.cluster.view.workloads import EVENTS
from cagrpc.fleet.model import ExpectedPod
from cagrpc.runtime.progress import DEADLINE_SECONDS, LONGEST_FACTOR
from tests.support.controllers.cluster_objects import JOBS, NOW, PRIORITIES, REPLICA_SETS, STATEFUL_SETS, Fed, pod
from tests.support.examples import examples

QUOTAS, NAMESPACES = "/api/v1/resourcequotas", "/api/v1/namespaces"


def template(cpu: str = "1", labels: Any = None, **spec: Any) -> bytes:
    found = kubernetes_pb2.PodTemplateSpec(metadata={"labels": labels or {}}, spec=spec)
    found.spec.containers.add().resources.requests["cpu"].string = cpu
    return found.SerializeToString()


def metadata(name: str, parent: str = "", namespace: str = "default", **more: Any) -> kubernetes_pb2.ObjectMeta:
    found = kubernetes_pb2.ObjectMeta(namespace=namespace, name=name, **more)
    if parent:
        kind, _, of = parent.partition("/")
        found.ownerReferences.add(kind=kind, name=of, controller=True)
    return found


def replica_set(
    wants: int,
    there: int = 0,
    name: str = "web-1",
    *,
    parent: str = "",
    of: bytes | None = None,
    namespace: str = "default",
    failure: str = "",
) -> kubernetes_pb2.ReplicaSet:
    found = kubernetes_pb2.ReplicaSet(
        metadata=metadata(name, parent, namespace),
        spec={"replicas": wants, "template": template() if of is None else of},
        status={"replicas": there},
    )
    if failure:
        found.status.conditions.add(type="ReplicaFailure", status="True", reason="FailedCreate", message=failure)
    return found


def deployment(wants: int, of: bytes | None = None, **spec: Any) -> kubernetes_pb2.Deployment:
    spec = {"replicas": wants, "template": template() if of is None else of, **spec}
    return kubernetes_pb2.Deployment(metadata=metadata("web"), spec=spec)


def made(name: str, owner: str = "ReplicaSet/web-1", **more: Any) -> kubernetes_pb2.Pod:
    kind, _, owner_name = owner.partition("/")
    return pod(name, owner=kind, owner_name=owner_name, **more)


def expected(fed: Fed) -> int:
    found = fed.model.arrivals().expected
    assert len(fed.state().expected) == found
    return found


@pytest.fixture
def fed() -> Fed:
    return Fed(expects=True)


def test_pods_to_come_wait_with_those_that_are_there(fed: Fed) -> None:
    tolerated = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in ("not-ready", "unreachable")]
    there = [made(f"p{number}", tolerations=tolerated) for number in range(2)]
    fed.put(*there)
    fed.put(replica_set(5, 1), path=REPLICA_SETS)  # the status lags behind
    (waiting,) = fed.state().waiting
    assert (waiting.pod_set.name, waiting.pod_set.count) == ("default/p0", 5)
    assert [each.key for each in waiting.pods] == [
        "uid-p0",
        "uid-p1",
        *(ExpectedPod("ReplicaSet/default/web-1", number) for number in range(3)),
    ]
    assert fed.model.arrivals().waiting == 2


def test_those_to_come_are_like_the_youngest_pod_that_is_there(fed: Fed) -> None:
    young = made("young", cpu="1500m", node="n1", created=200)  # with a sidecar that a webhook adds
    fed.put(young, made("old", node="n1", created=100))
    fed.put(replica_set(4), path=REPLICA_SETS)
    assert to_come(fed) == (1500, 2)
    fed.put(made("young", cpu="1750m", node="n1", created=200))
    assert to_come(fed) == (1750, 2), "it was resized"
    fed.put(made("old", cpu="500m", node="n1", created=100))
    assert to_come(fed) == (1750, 2)
    fed.drop(young)
    assert to_come(fed) == (500, 3)


def to_come(fed: Fed) -> tuple[int, int]:
    """Return how much CPU each requests, and how many there are."""
    (waiting,) = fed.state().waiting
    return dict(waiting.pod_set.spec.requests)["cpu"], waiting.pod_set.count


def test_none_is_planned_before_it_exists_while_the_youngest_is_held_back(fed: Fed) -> None:
    gate = kubernetes_pb2.PodSchedulingGate(name="g")
    fed.put(made("young", created=200, schedulingGates=[gate]), made("old", node="n1", created=100))
    fed.put(replica_set(4), path=REPLICA_SETS)
    assert expected(fed) == 0
    fed.put(made("young", created=200))
    assert expected(fed) == 2


def test_without_a_pod_their_tolerations_are_those_that_admission_adds(fed: Fed) -> None:
    fed.put(replica_set(1), path=REPLICA_SETS)
    (waiting,) = fed.state().waiting
    assert [(each.key, each.effect) for each in waiting.pod_set.spec.tolerations] == [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
    ]


def test_a_deployments_pods_are_expected_before_it_has_a_replica_set_and_counted_once_after(fed: Fed) -> None:
    fed.put(deployment(4), path=DEPLOYMENTS)
    keys = fed.state().expected
    assert keys == {ExpectedPod("Deployment/default/web", number) for number in range(4)}
    fed.time = 1.0
    fed.put(replica_set(4, parent="Deployment/web"), path=REPLICA_SETS)
    assert fed.state().expected == keys
    assert fed.model.arrivals().last_seen_at_seconds == 0.0
    fed.put(made("p"))
    state = fed.state()
    assert state.expected == keys - {ExpectedPod("Deployment/default/web", 3)}
    assert state.roots == {"ReplicaSet/default/web-1": "Deployment/default/web"}


def test_a_replica_set_may_be_seen_before_its_deployment_or_be_of_something_unknown(fed: Fed) -> None:
    fed.put(replica_set(2, parent="Rollout/web"), path=REPLICA_SETS)
    fed.put(replica_set(3, name="web-2", parent="Deployment/web"), path=REPLICA_SETS)
    assert expected(fed) == 5
    fed.put(deployment(3), path=DEPLOYMENTS)
    assert expected(fed) == 5


def test_while_a_deployment_rolls_out_each_revision_has_its_own(fed: Fed) -> None:
    fed.put(deployment(4, template("2")), path=DEPLOYMENTS)
    fed.put(replica_set(3, name="old", parent="Deployment/web"), path=REPLICA_SETS)
    fed.put(replica_set(2, name="new", parent="Deployment/web", of=template("2")), path=REPLICA_SETS)
    fed.put(*(made(f"p{number}", "ReplicaSet/old", node="n1") for number in range(3)))
    (waiting,) = fed.state().waiting
    assert (waiting.pod_set.spec.requests, waiting.pod_set.count) == ((("cpu", 2000),), 2)


@pytest.mark.parametrize("spec", [{"paused": True}, {"strategy": {"type": "Recreate"}}])
def test_what_a_deployment_makes_next_is_not_always_known(fed: Fed, spec: Any) -> None:
    fed.put(deployment(4, **spec), path=DEPLOYMENTS)
    assert expected(fed) == 0
    fed.put(replica_set(3, parent="Deployment/web"), path=REPLICA_SETS)
    assert expected(fed) == 3


@pytest.mark.parametrize(
    ("spec", "status", "to_come"),
    [
        ({"replicas": 5, "podManagementPolicy": "Parallel"}, {}, 4),
        ({"replicas": 5}, {"replicas": 1, "readyReplicas": 1}, 1),
        ({"replicas": 5}, {"replicas": 1}, 0),
        ({"replicas": 1}, {"replicas": 3, "readyReplicas": 3}, 0),
    ],
)
def test_stateful_sets_make_one_pod_after_the_other(fed: Fed, spec: Any, status: Any, to_come: int) -> None:
    of = kubernetes_pb2.StatefulSet(metadata=metadata("db"), spec={**spec, "template": template()}, status=status)
    fed.put(made("db-0", "StatefulSet/db"))
    fed.put(of, path=STATEFUL_SETS)
    assert expected(fed) == to_come


def test_a_stateful_set_waits_for_a_pod_to_be_gone_a_replica_set_does_not(fed: Fed) -> None:
    parallel = {"replicas": 1, "podManagementPolicy": "Parallel", "template": template()}
    fed.put(kubernetes_pb2.StatefulSet(metadata=metadata("db"), spec=parallel), path=STATEFUL_SETS)
    fed.put(made("db-0", "StatefulSet/db", node="n1", deleting=True))
    assert expected(fed) == 0
    fed.put(replica_set(1), path=REPLICA_SETS)
    fed.put(made("p", node="n1", deleting=True))
    assert expected(fed) == 1


@pytest.mark.parametrize(
    ("spec", "status", "to_come"),
    [
        ({"parallelism": 4, "completions": 10}, {"active": 1, "succeeded": 2}, 3),
        ({"parallelism": 4, "completions": 10}, {"active": 1, "succeeded": 8}, 1),
        ({"parallelism": 4}, {"active": 1}, 3),
        ({"parallelism": 4}, {"active": 1, "succeeded": 1}, 0),
        ({"parallelism": 4, "completions": 0}, {}, 0),
        ({"parallelism": 4, "completions": 4, "suspend": True}, {}, 0),
        ({"parallelism": 4, "completions": 4}, {"failed": 1}, 0),
        ({"parallelism": 4, "completions": 4}, {"conditions": [{"type": "Complete", "status": "True"}]}, 0),
        ({"parallelism": 4, "completions": 4}, {"conditions": [{"type": "Suspended", "status": "False"}]}, 3),
    ],
)
def test_jobs_make_as_many_pods_as_run_at_once(fed: Fed, spec: Any, status: Any, to_come: int) -> None:
    fed.put(made("j-0", "Job/j"))
    job = kubernetes_pb2.Job(metadata=metadata("j"), spec={**spec, "template": template()}, status=status)
    fed.put(job, path=JOBS)
    assert expected(fed) == to_come


def test_a_pod_that_has_succeeded_is_not_made_again_while_its_job_does_not_know(fed: Fed) -> None:
    spec = {"parallelism": 2, "completions": 2, "template": template()}
    fed.put(kubernetes_pb2.Job(metadata=metadata("j"), spec=spec), path=JOBS)
    done = made("j-0", "Job/j", phase="Succeeded")
    done.metadata.finalizers.append("batch.kubernetes.io/job-tracking")
    fed.put(done)
    assert expected(fed) == 1


def job_set(**more: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": 2, "memory": "1Gi"}}
    pod_template = {
        "metadata": {"labels": {"a": "b"}, "creationTimestamp": None},
        "spec": {
            "containers": [{"name": "main", "image": "trainer", "resources": resources}],
            "restartPolicy": "Never",
        },
    }
    jobs = [
        {"name": "driver", "replicas": 1, "template": {"spec": {"template": pod_template}}},
        {
            "name": "worker",
            "replicas": 2,
            "template": {"spec": {"parallelism": 4, "completions": 3, "template": pod_template}},
        },
    ]
    return {
        "metadata": {"namespace": "default", "name": "train"},
        "spec": {"replicatedJobs": jobs, **more.pop("spec", {})},
        **more,
    }


def test_a_job_sets_pods_are_expected_before_its_jobs_are_there(fed: Fed) -> None:
    fed.put(job_set(), path=JOB_SETS)
    assert expected(fed) == 1 + 2 * 3
    (waiting,) = fed.state().waiting
    assert waiting.pod_set.spec.requests == (("cpu", 2000), ("memory", 2**30))
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "worker"}
    job = kubernetes_pb2.Job(
        metadata=metadata("train-worker-0", "JobSet/train", labels=labels),
        spec={"parallelism": 4, "completions": 3, "template": template()},
    )
    fed.put(job, path=JOBS)
    assert expected(fed) == 7
    fed.put(made("w", "Job/train-worker-0"))
    assert expected(fed) == 6
    assert all(each.workload == "JobSet/default/train" for each in fed.state().expected)


@pytest.mark.parametrize(
    ("more", "to_come"),
    [
        ({"spec": {"suspend": True}}, 0),
        ({"spec": {"startupPolicy": {"startupPolicyOrder": "InOrder"}}}, 1),
        ({"status": {"conditions": [{"type": "Completed", "status": "True"}]}}, 0),
    ],
)
def test_a_job_set_that_creates_no_jobs_now_has_none_to_come(fed: Fed, more: Any, to_come: int) -> None:
    fed.put(job_set(**more), path=JOB_SETS)
    assert expected(fed) == to_come


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(template(labels={DEFAULT_GANG_LABEL: "g"}), id="gang"),
        pytest.param(template(labels={"kueue.x-k8s.io/queue-name": "q"}), id="kueue"),
        pytest.param(template(schedulingGates=[{"name": "g"}]), id="gated"),
        pytest.param(template(schedulerName="another"), id="another scheduler"),
        pytest.param(template("much"), id="unreadable"),
    ],
)
def test_pods_that_are_planned_only_once_they_are_there(fed: Fed, of: bytes) -> None:
    fed.put(replica_set(2, of=of), path=REPLICA_SETS)
    assert expected(fed) == 0


def test_the_priority_of_those_to_come_is_their_classs_whatever_the_template_says(fed: Fed) -> None:
    fed.put(replica_set(1, of=template(priority=2_000_000_000)), path=REPLICA_SETS)
    named = template(priorityClassName="high", priority=2_000_000_000)
    fed.put(replica_set(1, name="named", of=named), path=REPLICA_SETS)

    def priorities() -> dict[str, int]:
        return {each.pod_set.name: each.pod_set.priority for each in fed.state().waiting}

    assert priorities() == {"default/web-1-00000": 0}  # admission refuses pods of a class that is not there
    for name, value, default in (("high", 100, False), ("usual", 5, True)):
        found = kubernetes_pb2.PriorityClass(metadata={"name": name}, value=value, globalDefault=default)
        fed.put(found, path=PRIORITIES)
    assert priorities() == {"default/named-00000": 100, "default/web-1-00000": 5}


def test_nothing_is_planned_for_expendable_pods_to_come(fed: Fed) -> None:
    fed.put(kubernetes_pb2.PriorityClass(metadata={"name": "low"}, value=-100), path=PRIORITIES)
    fed.put(replica_set(1, of=template(priorityClassName="low")), path=REPLICA_SETS)
    assert not fed.state().waiting


def test_a_quota_says_how_many_may_come(fed: Fed) -> None:
    fed.put(replica_set(5), replica_set(5, name="web-2"), path=REPLICA_SETS)
    quota = {"metadata": {"namespace": "default", "name": "q"}}
    for hard, used, to_come in (
        ({"pods": "4"}, {"pods": "1"}, 3),
        ({"requests.cpu": "6500m"}, {}, 6),
        ({"cpu": "20", "count/pods": "100", "limits.cpu": "0", "requests.nvidia.com/gpu": "0"}, {}, 10),
        ({"pods": "1"}, {"pods": "3"}, 0),
        ({"requests.cpu": "3", "cpu": "20"}, {"requests.cpu": "1", "cpu": "1"}, 2),
    ):
        fed.put({**quota, "status": {"hard": hard, "used": used}}, path=QUOTAS)
        assert expected(fed) == to_come, hard
    fed.drop(quota, path=QUOTAS)
    assert expected(fed) == 10


def test_whoever_wants_any_number_of_pods_has_a_few_expected(fed: Fed) -> None:
    for number in range(5):
        fed.put(replica_set(2_000_000_000, name=f"web-{number}"), path=REPLICA_SETS)
    assert [expected(fed), MOST, MOST_OF_ONE] == [20_000, 20_000, 5_000]


def by_namespace(fed: Fed) -> Counter[str]:
    return Counter(each.workload.split("/")[1] for each in fed.state().expected)


def test_a_namespace_that_wants_any_number_leaves_others_their_share(fed: Fed) -> None:
    for number in range(5):
        fed.put(replica_set(2_000_000_000, name=f"web-{number}", namespace="greedy"), path=REPLICA_SETS)
    fed.put(replica_set(300, namespace="modest"), path=REPLICA_SETS)
    assert by_namespace(fed) == {"greedy": MOST - 300, "modest": 300}
    for number in range(5):
        fed.put(replica_set(2_000_000_000, name=f"web-{number}", namespace="second"), path=REPLICA_SETS)
    assert by_namespace(fed) == {"greedy": MOST - 300 - MOST // 3, "modest": 300, "second": MOST // 3}
    fed.drop(*(replica_set(0, name=f"web-{number}", namespace="greedy") for number in range(5)), path=REPLICA_SETS)
    fed.put(replica_set(2_000_000_000, name="web-0", namespace="second"), path=REPLICA_SETS)
    assert by_namespace(fed)["modest"] == 300
    assert by_namespace(fed)["second"] > MOST // 3


WORKLOADS = st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 60))
"""Namespace, number, pods."""


@examples(100)
@given(st.lists(WORKLOADS, max_size=30))
def test_no_namespace_has_less_than_its_share_for_what_others_want(changes: list[tuple[str, int, int]]) -> None:
    most = 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_expected, "MOST", most)
        fed, wanted = Fed(expects=True), {}
        for namespace, number, pods in changes:
            fed.put(replica_set(pods, name=f"w{number}", namespace=namespace), path=REPLICA_SETS)
            wanted[namespace, number] = pods
            found, asked = by_namespace(fed), Counter[str]()
            for (who, _), count in wanted.items():
                asked[who] += count
            assert found.total() <= most
            assert found[namespace] >= min(asked[namespace], most // len(+asked or "-"))
    fed.drop(*(replica_set(0, name=f"w{n}", namespace=of) for of, n in wanted), path=REPLICA_SETS)
    assert not any(fed.leftovers())


def test_in_a_namespace_that_is_being_deleted_nothing_is_created(fed: Fed) -> None:
    fed.put(replica_set(2), path=REPLICA_SETS)
    namespace = kubernetes_pb2.Namespace(metadata={"name": "default"})
    fed.put(namespace, path=NAMESPACES)
    assert expected(fed) == 2
    namespace.metadata.deletionTimestamp.seconds = 1
    fed.put(namespace, path=NAMESPACES)
    assert expected(fed) == 0
    fed.put(replica_set(3), path=REPLICA_SETS)
    assert expected(fed) == 0
    fed.drop(namespace, path=NAMESPACES)
    assert expected(fed) == 3


def test_a_pod_that_was_expected_is_no_news(fed: Fed) -> None:
    fed.put(replica_set(2), path=REPLICA_SETS)
    fed.time = 5.0
    fed.put(made("p1"))
    assert fed.model.arrivals().last_seen_at_seconds == 0.0
    fed.put(made("p2"), made("p3"))  # one more than it wants
    assert fed.model.arrivals().last_seen_at_seconds == 5.0
    fed.time = 6.0
    fed.put(replica_set(9, 3), path=REPLICA_SETS)
    assert (expected(fed), fed.model.arrivals().last_seen_at_seconds) == (6, 6.0)


def test_what_does_not_come_is_given_up_until_it_comes_after_all(fed: Fed) -> None:
    fed.put(replica_set(4), path=REPLICA_SETS)
    fed.time = DEADLINE_SECONDS
    fed.put(made("p1"))
    fed.time = 1.9 * DEADLINE_SECONDS
    assert expected(fed) == 3
    fed.time = 2.5 * DEADLINE_SECONDS
    assert expected(fed) == 0
    fed.put(replica_set(4, 1), path=REPLICA_SETS)
    assert expected(fed) == 0
    fed.put(made("p2"))
    assert expected(fed) == 2
    fed.time = 5 * DEADLINE_SECONDS
    assert expected(fed) == 0
    fed.put(replica_set(6, 2), path=REPLICA_SETS)
    assert expected(fed) == 4


def test_a_workload_waits_for_its_turn_while_its_controller_makes_pods_of_others(fed: Fed) -> None:
    fed.put(replica_set(50, name="first"), replica_set(2, name="last"), path=REPLICA_SETS)
    for number in range(50):
        fed.time += 0.9 * DEADLINE_SECONDS
        fed.put(made(f"p{number}", "ReplicaSet/first"))
        assert expected(fed) == 51 - number
    fed.time += DEADLINE_SECONDS
    assert expected(fed) == 0


def test_the_controllers_of_other_kinds_say_nothing_about_its_turn(fed: Fed) -> None:
    fed.put(replica_set(2), path=REPLICA_SETS)
    for number in range(4):
        fed.time += 0.3 * DEADLINE_SECONDS
        fed.put(made(f"p{number}", "Job/j"))
        assert expected(fed) == (2 if fed.time < DEADLINE_SECONDS else 0)


def test_a_deployment_waits_for_its_replica_set_while_others_get_theirs(fed: Fed) -> None:
    fed.put(deployment(3), path=DEPLOYMENTS)
    for number in range(5):
        fed.time += 0.9 * DEADLINE_SECONDS
        fed.put(replica_set(0, name=f"of-{number}", parent=f"Deployment/other-{number}"), path=REPLICA_SETS)
        assert expected(fed) == 3
    fed.time += DEADLINE_SECONDS
    assert expected(fed) == 0


def test_one_that_was_passed_over_is_not_waited_for_however_many_others_come(fed: Fed) -> None:
    fed.put(replica_set(4, name="stuck"), path=REPLICA_SETS)
    churn = 0
    while expected(fed):
        fed.time += DEADLINE_SECONDS / 2
        fed.put(made(f"p{churn}", "ReplicaSet/other"))
        churn += 1
        assert fed.time <= LONGEST_FACTOR * DEADLINE_SECONDS
    assert fed.time == LONGEST_FACTOR * DEADLINE_SECONDS


def test_when_controllers_go_on_after_a_pause_all_are_believed_again_and_once(fed: Fed) -> None:
    fed.put(*(replica_set(2, name=f"web-{number}") for number in range(3)), path=REPLICA_SETS)
    fed.time = 5 * DEADLINE_SECONDS
    assert expected(fed) == 0
    fed.put(made("p0", "ReplicaSet/web-0"))
    assert expected(fed) == 5
    fed.time += DEADLINE_SECONDS
    assert expected(fed) == 0
    fed.put(made("p1", "ReplicaSet/web-1"))
    assert expected(fed) == 2  # of those that have created pods since: one, and one of the first
    fed.time += DEADLINE_SECONDS
    assert expected(fed) == 0
    fed.put(made("other", "ReplicaSet/other"))
    assert expected(fed) == 1


QUOTA = 'pods "web-1-x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5'
WEBHOOK = 'admission webhook "w.example" denied the request: no'
CONFLICT = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
NO_ACCOUNT = (
    'pods "x" is forbidden: error looking up service account default/default: serviceaccount "default" not found'
)


@pytest.mark.parametrize(("message", "to_come"), [(QUOTA, 0), (WEBHOOK, 0), (CONFLICT, 3), (NO_ACCOUNT, 3)])
def test_of_a_replica_set_that_is_refused_none_are_expected_at_once(fed: Fed, message: str, to_come: int) -> None:
    fed.put(replica_set(3, failure=message), path=REPLICA_SETS)
    assert expected(fed) == to_come


def test_one_whose_pods_fail_does_not_wait_for_others(fed: Fed) -> None:
    fed.put(replica_set(3, failure=CONFLICT), path=REPLICA_SETS)
    fed.time = 0.9 * DEADLINE_SECONDS
    fed.put(made("p", "ReplicaSet/other"))
    assert expected(fed) == 3
    fed.time = DEADLINE_SECONDS
    assert expected(fed) == 0


def test_a_deployment_whose_replica_set_is_refused_has_no_pods_to_come(fed: Fed) -> None:
    refused = deployment(4)
    refused.status.conditions.add(
        type="Progressing", status="False", reason="ReplicaSetCreateError", message=QUOTA.replace("pods", "replicasets")
    )
    fed.put(refused, path=DEPLOYMENTS)
    assert expected(fed) == 0


def failed_create(message: str, at: int, kind: str = "Job", name: str = "j") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": f"{name}.1"},
        "involvedObject": {"kind": kind, "namespace": "default", "name": name},
        "message": f"Error creating: {message}",
        "lastTimestamp": timestamp(NOW + at),
    }


def test_of_a_job_events_say_that_it_is_refused_until_a_pod_comes_or_it_wants_more(fed: Fed) -> None:
    def job(pods: int) -> kubernetes_pb2.Job:
        spec = {"parallelism": pods, "completions": pods, "template": template()}
        return kubernetes_pb2.Job(metadata=metadata("j"), spec=spec)

    fed.put(failed_create(QUOTA, 0), path=EVENTS)  # of one that is not known
    fed.put(job(3), path=JOBS)
    fed.put(failed_create(QUOTA, -60), path=EVENTS)  # of one of this name that is gone
    fed.put(failed_create(CONFLICT, 1), path=EVENTS)
    assert expected(fed) == 3
    fed.put(failed_create(QUOTA, 1), path=EVENTS)
    assert expected(fed) == 0
    fed.put(job(3), path=JOBS)
    assert expected(fed) == 0
    fed.put(made("j-0", "Job/j", created=int(NOW) + 2))
    assert expected(fed) == 2
    fed.put(failed_create(QUOTA, 1), path=EVENTS)  # listed again
    assert expected(fed) == 2
    fed.put(failed_create(WEBHOOK, 3), path=EVENTS)
    assert expected(fed) == 0
    fed.put(job(5), path=JOBS)
    assert expected(fed) == 4
    fed.drop(job(5), path=JOBS)
    fed.drop(made("j-0", "Job/j"))
    assert not any(fed.leftovers())


def test_nothing_is_expected_where_that_is_not_asked_for() -> None:
    fed = Fed()
    assert REPLICA_SETS not in {each.resource.path for each in fed.model.followed}
    fed.put(made("p1"))
    assert not any(each.is_expected for waiting in fed.state().waiting for each in waiting.pods)


def test_growth_is_news_of_its_namespace_only(fed: Fed) -> None:
    fed.put(replica_set(2, namespace="noisy"), path=REPLICA_SETS)
    fed.time = 3.0
    fed.put(made("p", "ReplicaSet/other"))
    fed.time = 4.0
    fed.put(replica_set(3, namespace="noisy"), path=REPLICA_SETS)
    assert fed.model.arrivals().news_at_seconds == {"noisy": 4.0, "default": 3.0}
