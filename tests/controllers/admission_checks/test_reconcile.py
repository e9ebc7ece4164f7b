"""What becomes of a Workload's checks and requests: named cases of both forms of KEP-1136, and of what they leave
open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from cagrpc.api.core.consumption import consumption
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.kueue import PENDING, READY, REJECTED, RETRY
from cagrpc.api.provisioning.objects import POD_TEMPLATES, REQUESTS
from cagrpc.controllers.settings import KueueSettings, RetryMode
from tests.support.api_server import Refusal
from tests.support.cluster import path_of
from tests.support.kueue import (
    CHECK,
    CLASS,
    NAMESPACE,
    NOW,
    Happening,
    KueueWorld,
    check_state,
    condition,
    config,
    configured,
    flavor,
    pod_set,
    retries,
    says,
    workload,
)

KEEP = KueueSettings(retry_mode=RetryMode.KEEP)
PROVISIONED = condition("Provisioned", message="all 9 pods have room")
ACCEPTED = condition("Accepted", message="ready in about 90 s: 2 nodes of gpu-b")
FAILED = condition("Failed", message="7 of 8 workers fit now; all 8 if gpu-b may grow by 1")
EXPIRED = condition("BookingExpired", message="nobody came for 10 min")
REVOKED = condition("CapacityRevoked", message="node gpu-b-1 was lost")
READY_NOW = (says(PROVISIONED),)
ADMITTED = (*READY_NOW, lambda world: world.kueue_says(condition("Admitted")))
ONE, TWO = "job-capacity-1", "job-capacity-2"
ONE_TRY = {"configs": {CHECK: config(**retries(0))}}


@dataclass(frozen=True)
class Case:
    story: tuple[Happening, ...]
    """What happens, once what can be asked for is asked for."""
    state: str
    """Of the check, after it."""
    requests: tuple[str, ...]
    """What is there then; PodTemplates are of the same requests."""
    world: dict[str, Any] = field(default_factory=dict)


def finish(world: KueueWorld) -> None:
    world.kueue_says(condition("Finished", message="the job succeeded"))


def suspend(world: KueueWorld) -> None:
    world.kueue_says(condition("QuotaReserved", False))


def stop(world: KueueWorld) -> None:
    world.activate(False)


KEP = {
    "a request is made once quota is reserved": Case((), PENDING, (ONE,)),
    "ProvisioningRequest is completed successfully": Case(READY_NOW, READY, (ONE,)),
    "ProvisioningRequest is completed successfully, by CapacityAvailable": Case(
        (says(condition("CapacityAvailable")),), READY, (ONE,)
    ),
    "completed successfully, then Workload completes till success": Case((*ADMITTED, finish), READY, ()),
    "completed successfully, then Workload is preempted and goes back to suspend": Case(
        (*ADMITTED, KueueWorld.kueue_evicts), PENDING, ()
    ),
    "completed successfully, then Workload is deleted": Case((*ADMITTED, KueueWorld.delete), READY, ()),
    "ProvisioningRequest is failed (first form: Rejected at once)": Case((says(FAILED),), REJECTED, (ONE,), ONE_TRY),
    "ProvisioningRequest is failed (Kueue of today: Retry)": Case((says(FAILED),), RETRY, (ONE,)),
    "ProvisioningRequest is failed (v0.6.2: Pending until the retries end)": Case(
        (says(FAILED),), PENDING, (ONE,), {"settings": KEEP}
    ),
    "Workload is deleted": Case((KueueWorld.delete,), PENDING, ()),
    "Workload is suspended": Case((suspend,), PENDING, ()),
    "Queue definition changes and doesn't require any AdmissionChecks anymore": Case((KueueWorld.set_checks,), "", ()),
    "ProvisioningRequestConfig changes": Case((configured(parameters={"Priority": "TopTier"}),), PENDING, (ONE,)),
    "ProvisioningRequestConfig is removed": Case((KueueWorld.remove_config,), PENDING, ()),
    "no pod set of interest (managedResources)": Case((configured(managedResources=["nvidia.com/gpu"]),), READY, ()),
}

MORE = {
    "Accepted waits with the estimate": Case((says(ACCEPTED),), PENDING, (ONE,)),
    "not found yet waits": Case(
        (says(condition("Provisioned", False, message="tried again in 60 s")),), PENDING, (ONE,)
    ),
    "CapacityAvailable=False counts as failed": Case(
        (says(condition("CapacityAvailable", False, message="12 of 16 fit")),), RETRY, (ONE,)
    ),
    "CapacityAvailable=False beside Provisioned does not": Case(
        (says(condition("CapacityAvailable", False), PROVISIONED),), READY, (ONE,)
    ),
    "BookingExpired before admission is tried again": Case((*READY_NOW, says(PROVISIONED, EXPIRED)), RETRY, (ONE,)),
    "BookingExpired before admission, keeping quota": Case(
        (*READY_NOW, says(PROVISIONED, EXPIRED)), PENDING, (ONE,), {"settings": KEEP}
    ),
    "BookingExpired of the last attempt is Rejected": Case(
        (*READY_NOW, says(PROVISIONED, EXPIRED)), REJECTED, (ONE,), ONE_TRY
    ),
    "BookingExpired after admission changes nothing": Case((*ADMITTED, says(PROVISIONED, EXPIRED)), READY, (ONE,)),
    "CapacityRevoked after admission is Rejected": Case((*ADMITTED, says(PROVISIONED, REVOKED)), REJECTED, (ONE,)),
    "CapacityRevoked before admission is Rejected": Case((*READY_NOW, says(PROVISIONED, REVOKED)), REJECTED, (ONE,)),
    "a configuration that changes leaves what is Ready": Case(
        (*READY_NOW, configured(provisioningClassName="another.example.com")), READY, (ONE,)
    ),
    "a configuration that is removed leaves what is admitted": Case(
        (*ADMITTED, KueueWorld.remove_config), READY, (ONE,)
    ),
    "a configuration that is removed takes Ready away before admission": Case(
        (*READY_NOW, KueueWorld.remove_config), PENDING, ()
    ),
    "deactivated": Case((stop,), PENDING, ()),
    "without quota nothing is made": Case((), PENDING, (), {"of": workload(reserved="")}),
    "a check of another controller is left alone": Case((), PENDING, (), {"configs": {}}),
    "Retry waits for Kueue": Case((says(FAILED), lambda world: world.run(3600, step=60)), RETRY, (ONE,)),
    "Retry, and Kueue evicts": Case((says(FAILED), KueueWorld.kueue_evicts), PENDING, ()),
    "a request that somebody deleted is made anew": Case((KueueWorld.delete_requests,), PENDING, (ONE,)),
    "a request that somebody deletes after Ready is not": Case((*READY_NOW, KueueWorld.delete_requests), READY, ()),
}


@pytest.mark.parametrize("name", [*KEP, *MORE])
def test_case(name: str) -> None:
    case = {**KEP, **MORE}[name]
    with KueueWorld(**case.world) as world:
        world.play(*case.story)
        for _ in range(2):
            assert [each["state"] for each in world.checks] == ([case.state] if case.state else [])
            assert tuple(world.requests) == case.requests
            of = {each["metadata"]["annotations"]["kueue.cagrpc.io/request"] for each in world.templates.values()}
            assert of == set(case.requests)
            version = world.api.latest_version
            world.play(KueueWorld.restart)
            assert world.api.latest_version == version, "nothing is left to do for another process"


# ---- what is asked for


def test_the_request_has_class_parameters_and_pods() -> None:
    of = {"provreq.kueue.x-k8s.io/Priority": "low", "provreq.kueue.x-k8s.io/noRetry": "true", "other": "x"}
    parameters = {"Priority": "TopTier", "ValidUntilSeconds": "600"}
    with KueueWorld(workload(annotations=of), configs={CHECK: config(parameters=parameters)}) as world:
        world.settle()
        spec = world.requests[ONE]["spec"]
        assert spec["provisioningClassName"] == CLASS
        assert spec["parameters"] == {"Priority": "low", "ValidUntilSeconds": "600", "noRetry": "true"}
        asked = [(each["podTemplateRef"]["name"], each["count"]) for each in spec["podSets"]]
        assert asked == [(f"ppt-{ONE}-workers", 8), (f"ppt-{ONE}-head", 1)]
        assert set(world.templates) == {f"ppt-{ONE}-workers", f"ppt-{ONE}-head"}


def test_the_workload_owns_the_templates_and_the_first_of_them_the_request() -> None:
    with KueueWorld() as world:
        world.settle()
        for template in world.templates.values():
            (owner,) = template["metadata"]["ownerReferences"]
            found = owner["apiVersion"], owner["kind"], owner["name"], owner["uid"]
            assert found == ("kueue.x-k8s.io/v1beta2", "Workload", "job", "workload-uid")
        (owner,) = world.requests[ONE]["metadata"]["ownerReferences"]
        first = world.templates[f"ppt-{ONE}-workers"]["metadata"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("PodTemplate", first["name"], first["uid"])
        assert owner["name"] != "job", "Kueue's own controller deletes what is owned by the Workload's name"


def test_flavors_add_labels_and_tolerations_and_limits_are_requests() -> None:
    toleration, gpu = {"key": "spot", "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}
    pods = pod_set("workers", 2, nodeSelector={"zone": "a"}, tolerations=[toleration])
    pods["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "2", "nvidia.com/gpu": "1"}
    pods["template"]["metadata"] = {"labels": {"app": "x"}, "annotations": {"a": "b"}, "name": "dropped"}
    flavors = [
        flavor("spot", nodeLabels={"zone": "a", "spot": "true"}, tolerations=[toleration]),
        flavor("gpu", nodeLabels={"gpu": "h100"}, tolerations=[gpu]),
    ]
    with KueueWorld(workload(pods, flavors={"cpu": "spot", "nvidia.com/gpu": "gpu"}), flavors=flavors) as world:
        world.settle()
        template = world.templates[f"ppt-{ONE}-workers"]["template"]
    assert template["metadata"] == {"labels": {"app": "x"}, "annotations": {"a": "b"}}
    assert template["spec"]["nodeSelector"] == {"zone": "a", "spot": "true", "gpu": "h100"}
    assert template["spec"]["tolerations"] == [toleration, gpu]
    assert template["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("pods", "flavors", "message"),
    [
        (pod_set("workers", 1), [], "pod set workers is admitted to ResourceFlavor plain, which does not exist"),
        (
            pod_set("workers", 1, nodeSelector={"zone": "a"}),
            [flavor(nodeLabels={"zone": "b"})],
            "pod set workers selects nodes with zone=a, and its ResourceFlavor plain has zone=b",
        ),
    ],
)
def test_a_missing_or_contradicting_flavor_is_reported(pods: Any, flavors: Any, message: str) -> None:
    with KueueWorld(workload(pods), flavors=flavors) as world:
        world.settle()
        assert (world.state["state"], world.state["message"], world.requests) == (PENDING, message, {})


ALIKE = [pod_set("a", 2), pod_set("b", 3, {"cpu": "1000m"}), pod_set("c", 1, {"cpu": "2"})]
OTHER_IMAGE = pod_set("b", 3, {"cpu": "1000m"})
OTHER_IMAGE["template"]["spec"]["containers"][0]["image"] = "example.com/other"
OF_OTHER_FLAVORS = workload(*ALIKE)
OF_OTHER_FLAVORS["status"]["admission"]["podSetAssignments"][1]["flavors"] = {"cpu": "spot"}
GPUS = pod_set("gpus", 4, {"nvidia.com/gpu": "8"})
INIT = pod_set("init", 1)
INIT["template"]["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
MERGED, SIMILAR = "IdenticalPodTemplates", "IdenticalWorkloadSchedulingRequirements"
ABC = ["a", "b", "c"]
POD_SETS: dict[str, tuple[Any, dict[str, Any], list[int], list[str]]] = {
    "none is merged without a policy": (workload(*ALIKE), {}, [2, 3, 1], ABC),
    "identical ones": (workload(*ALIKE), {"podSetMergePolicy": MERGED}, [5, 1], ABC),
    "another image is not identical": (
        workload(ALIKE[0], OTHER_IMAGE, ALIKE[2]), {"podSetMergePolicy": MERGED}, [2, 3, 1], ABC,
    ),
    "another image asks for the same nodes": (
        workload(ALIKE[0], OTHER_IMAGE, ALIKE[2]), {"podSetMergePolicy": SIMILAR}, [5, 1], ABC,
    ),
    "of other flavors": (OF_OTHER_FLAVORS, {"podSetMergePolicy": MERGED}, [2, 3, 1], ABC),
    "only those with managed resources": (
        workload(pod_set("head", 1), GPUS, INIT), {"managedResources": ["nvidia.com/gpu"]}, [4, 1], ["gpus", "init"],
    ),
    "partial admission": (workload(counts={"workers": 5, "head": 0}), {}, [5], ["workers"]),
}  # fmt: skip


@pytest.mark.parametrize("name", POD_SETS)
def test_pod_sets(name: str) -> None:
    """Which of them are asked for; each that is, also in another, is updated."""
    of, spec, counts, updated = POD_SETS[name]
    flavors = [flavor(), flavor("spot", nodeLabels={"spot": "true"})]
    with KueueWorld(of, configs={CHECK: config(**spec)}, flavors=flavors) as world:
        world.settle()
        assert [each["count"] for each in world.requests[ONE]["spec"]["podSets"]] == counts
        world.play(*READY_NOW)
        assert [each["name"] for each in world.state["podSetUpdates"]] == updated


# ---- what the pods get


def test_ready_pods_consume_and_are_led_to_their_nodes() -> None:
    selectors = [
        {"key": "example.com/pool", "valueFromProvisioningClassDetail": "pool"},
        {"key": "cagrpc.io/booked", "valueFromProvisioningClassDetail": "nodeSelector"},
        {"key": "example.com/absent", "valueFromProvisioningClassDetail": "absent"},
    ]
    with KueueWorld(configs={CHECK: config(podSetUpdates={"nodeSelector": selectors})}) as world:
        world.play(says(PROVISIONED, nodeSelector="booking.cagrpc.io/u-1=true", pool="p-7"))
        first, second = world.state["podSetUpdates"]
    assert (first["name"], second["name"]) == ("workers", "head")
    found = consumption(first["annotations"])
    assert found is not None
    assert (found.request, found.class_name, found.missing) == (ONE, CLASS, "")
    assert first["annotations"]["cluster-autoscaler.kubernetes.io/consume-provisioning-request"] == ONE
    assert first["annotations"]["autoscaling.x-k8s.io/provisioning-class-name"] == CLASS
    assert first["nodeSelector"] == {"example.com/pool": "p-7", "booking.cagrpc.io/u-1": "true"}


def test_updates_go_when_ready_goes() -> None:
    with KueueWorld(settings=KEEP) as world:
        world.play(*READY_NOW)
        assert world.state["podSetUpdates"]
        world.play(says(PROVISIONED, EXPIRED))
        assert "podSetUpdates" not in world.state


# ---- what people are told


@pytest.mark.parametrize(
    ("condition", "world", "message"),
    [
        (
            ACCEPTED,
            {},
            (
                "ready in about 90 s: 2 nodes of gpu-b; costs $12.50/h, at least $12.00/h (gap 4.00%);"
                " node groups gpu-b=2,cpu=1"
            ),
        ),
        (
            FAILED,
            {},
            (
                "attempt 1 of 4 failed: 7 of 8 workers fit now; all 8 if gpu-b may grow by 1;"
                " Kueue may admit it again in 60 s"
            ),
        ),
        (FAILED, ONE_TRY, "attempt 1 of 1 failed: 7 of 8 workers fit now; all 8 if gpu-b may grow by 1"),
    ],
)
def test_the_message_has_the_explanation_the_counter_offer_cost_and_gap(
    condition: Any, world: dict[str, Any], message: str
) -> None:
    details = {"costPerHour": "12.5", "lowerBoundPerHour": "12.0", "gap": "0.04", "nodeGroups": "gpu-b=2,cpu=1"}
    with KueueWorld(**world) as made:
        made.play(says(condition, **(details if condition is ACCEPTED else {})))
        assert made.state["message"] == message


def test_the_time_of_the_check_is_that_of_its_state() -> None:
    with KueueWorld() as world:
        world.play(5)
        assert world.state["lastTransitionTime"] == timestamp(NOW - 60), "Pending as before"
        world.play(*READY_NOW)
        assert world.state["lastTransitionTime"] == timestamp(NOW + 5)


def test_what_kueue_keeps_in_its_checks_stays() -> None:
    other = check_state("quota-of-another", READY, retryCount=4, message="theirs")
    mine = check_state(retryCount=2, later="a field of tomorrow")
    with KueueWorld(workload(checks=[other, mine])) as world:
        world.settle()
        first, second = world.checks
        assert first == other
        assert second["message"]
        assert (second["retryCount"], second["later"]) == (2, "a field of tomorrow")


# ---- retries


def test_released_attempts_are_counted_by_kueue_and_wait_longer_each_time() -> None:
    pauses = []
    with KueueWorld() as world:
        world.play(says(FAILED))
        while world.state["state"] == RETRY:
            pauses.append(world.state["requeueAfterSeconds"])
            world.play(KueueWorld.kueue_evicts)
            assert not world.requests
            world.play(pauses[-1], KueueWorld.kueue_reserves, says(FAILED))
        assert world.made == [f"job-capacity-{attempt}" for attempt in (1, 2, 3, 4)]
        assert pauses == [60, 120, 240]
        assert world.state["state"] == REJECTED
        assert "attempt 4 of 4" in world.state["message"]


def test_kept_attempts_stay_pending_until_the_last() -> None:
    def fails(world: KueueWorld) -> None:
        world.says(condition("Failed", since=world.clock()))

    with KueueWorld(settings=KEEP) as world:
        for attempt, pause in enumerate((60, 120, 240), 1):
            world.play(fails, pause - 1)
            assert (len(world.made), world.state["state"]) == (attempt, PENDING)
            world.play(1)
            assert (len(world.made), len(world.requests)) == (attempt + 1, 1)
        world.play(fails)
        assert (world.made[-1], world.state["state"]) == ("job-capacity-4", REJECTED)


def test_the_pause_is_never_longer_than_the_longest() -> None:
    strategy = retries(10, base=100, longest=150)
    with KueueWorld(workload(checks=[check_state(retryCount=6)]), configs={CHECK: config(**strategy)}) as world:
        world.play(says(FAILED))
        assert (world.made, world.state["requeueAfterSeconds"]) == (["job-capacity-7"], 150)


def test_after_a_preemption_it_begins_anew() -> None:
    with KueueWorld() as world:
        world.play(*ADMITTED)
        world.kueue_evicts()
        world.clock.advance(30)
        world.kueue_reserves()  # and nobody looked in between: the request of before is still there
        del world.api.requests[:]
        world.settle()
        writes = [each for each in world.api.requests if "/provisioningrequests" in each and "GET" not in each]
        collection = path_of(REQUESTS, namespace=NAMESPACE)
        assert writes == [f"DELETE {collection}/{ONE}", f"POST {collection}"]
        assert (world.made, list(world.requests)) == ([ONE, ONE], [ONE])
        assert "status" not in world.requests[ONE]
        assert (world.state["state"], world.state.get("podSetUpdates")) == (PENDING, None)


def test_updates_that_an_eviction_left_are_never_ready_ones() -> None:
    with KueueWorld() as world:
        world.play(*ADMITTED)
        world.kueue_evicts()
        assert world.state["podSetUpdates"]
        world.play(lambda _: world.configure(managedResources=["nvidia.com/gpu"]), KueueWorld.kueue_reserves)
        assert (world.state["state"], world.state.get("podSetUpdates"), world.requests) == (READY, None, {})


def test_a_workload_that_is_activated_again_after_its_last_attempt_has_all_of_them() -> None:
    last = workload(checks=[check_state(retryCount=1)])
    with KueueWorld(last, configs={CHECK: config(**retries(1))}) as world:
        world.play(says(FAILED))
        assert (world.made, world.state["state"]) == ([TWO], REJECTED)
        world.activate(False)
        world.play(KueueWorld.kueue_evicts, 5)
        world.activate(True)
        world.play(KueueWorld.kueue_reserves)
        assert (world.made, list(world.requests)) == ([TWO, ONE], [ONE])


def test_a_new_configuration_begins_a_new_series() -> None:
    with KueueWorld(settings=KEEP) as world:
        world.play(says(FAILED), 60)
        assert list(world.requests) == [TWO]
        world.play(configured(parameters={"more": "patience"}))
        assert list(world.requests) == [ONE]
        assert world.requests[ONE]["spec"]["parameters"] == {"more": "patience"}


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"provisioningClassName": "another.example.com"}, 1),
        ({"parameters": {"a": "b"}}, 1),
        ({"managedResources": ["nvidia.com/gpu"]}, 1),
        ({"podSetMergePolicy": "IdenticalPodTemplates"}, 1),
        (retries(7), 0),
    ],
)
def test_a_request_that_is_out_of_step_with_its_configuration_is_replaced(change: Any, replaced: int) -> None:
    """Retries are no part of a request."""
    sets = [pod_set("a", 1), pod_set("b", 1), pod_set("c", 1, {"nvidia.com/gpu": "1"})]
    with KueueWorld(workload(*sets)) as world:
        world.play(configured(**change))
        assert world.actions("requests_replaced") == replaced
        assert len(world.made) == 1 + replaced


# ---- several checks, others' objects, refused writes


def test_each_check_has_requests_of_its_own() -> None:
    checks = [check_state("first"), check_state("theirs"), check_state("second")]
    configs = {"first": config(), "second": config(**retries(0))}
    with KueueWorld(workload(checks=checks), configs=configs) as world:
        world.settle()
        assert sorted(world.requests) == ["job-first-1", "job-second-1"]
        world.play(says(FAILED, name="job-second-1"), says(PROVISIONED, name="job-first-1"))
        states = {each["name"]: each["state"] for each in world.checks}
        assert states == {"first": READY, "theirs": PENDING, "second": REJECTED}
        world.play(lambda _: world.set_checks(checks[0]))
        assert sorted(world.requests) == ["job-first-1"]


@pytest.mark.parametrize("attempt", [None, "\N{SUPERSCRIPT TWO}", "-1"])
def test_what_is_not_ours_is_left_alone(attempt: str | None) -> None:
    annotations = {} if attempt is None else {"kueue.cagrpc.io/attempt": attempt}
    theirs = {
        "metadata": {"namespace": NAMESPACE, "labels": {"kueue.cagrpc.io/owned": "true"}, "annotations": annotations}
    }
    with KueueWorld() as world:
        for collection in (REQUESTS, POD_TEMPLATES):
            world.api.put(path_of(collection, "theirs", NAMESPACE), theirs)
        world.play(KueueWorld.kueue_evicts)
        assert (list(world.requests), list(world.templates)) == (["theirs"], ["theirs"])


def test_a_name_that_another_request_has_is_reported_until_it_is_free() -> None:
    with KueueWorld() as world:
        theirs = path_of(REQUESTS, ONE, NAMESPACE)
        world.api.put(theirs, {"metadata": {"namespace": NAMESPACE}})
        world.run(5)
        assert "another ProvisioningRequest of that name exists; delete it first" in world.state["message"]
        assert [(each.kind, each.warning) for each in world.events("FailedCreate")] == [("Workload", True)]
        world.api.remove(theirs)
        world.run(120)
        assert "kueue.cagrpc.io/attempt" in world.requests[ONE]["metadata"]["annotations"]
        assert ONE in world.state["message"]


def test_a_request_that_is_refused_is_made_once_it_is_not() -> None:
    def refuse(request: str) -> None:
        if request.startswith("POST") and "/provisioningrequests" in request:
            raise Refusal(422, "a webhook denied it")

    with KueueWorld() as world:
        world.api.before = refuse
        world.run(5)
        assert world.state["message"].startswith(f"ProvisioningRequest {ONE} cannot be created: ")
        assert "a webhook denied it" in world.state["message"]
        world.api.before = lambda _: None
        world.run(120)
        assert world.made == [ONE]
