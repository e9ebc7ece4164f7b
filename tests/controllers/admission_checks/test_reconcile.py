"""The admission check controller's decisions: named cases of both forms of KEP-1136, and of what they leave open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cagrpc.api.core.consumption import consumption
from cagrpc.api.encoding.times import timestamp
from cagrpc.api.kueue import PENDING, READY, REJECTED, RETRY
from cagrpc.controllers.admission_checks.model import CheckWrites
from cagrpc.controllers.settings import KueueSettings, RetryMode
from tests.support.controllers.kueue_objects import (
    CHECK,
    CLASS,
    NOW,
    KueueHarness,
    check_state,
    condition,
    config,
    flavor,
    pod_set,
    retries,
    workload,
)

KEEP = KueueSettings(retry_mode=RetryMode.KEEP)
PROVISIONED = condition("Provisioned", message="all 9 pods have room")
ACCEPTED = condition("Accepted", message="ready in about 90 s: 2 nodes of gpu-b")
FAILED = condition("Failed", message="7 of 8 workers fit now; all 8 if gpu-b may grow by 1")
EXPIRED = condition("BookingExpired", message="nobody came for 10 min")
REVOKED = condition("CapacityRevoked", message="node gpu-b-1 was lost")
ADMITTED = condition("Admitted")


def asked(**fields: Any) -> KueueHarness:
    """A Workload whose request was made and has no answer yet."""
    made = KueueHarness(**fields)
    made.settle()
    return made


def answered(*conditions: dict[str, Any], details: dict[str, str] | None = None, **fields: Any) -> KueueHarness:
    made = asked(**fields)
    made.says(*conditions, **(details or {}))
    made.settle()
    return made


def ready(**fields: Any) -> KueueHarness:
    return answered(PROVISIONED, **fields)


def admitted(**fields: Any) -> KueueHarness:
    made = ready(**fields)
    made.kueue_says(ADMITTED)
    made.settle()
    return made


@dataclass(frozen=True)
class Case:
    before: Callable[[], KueueHarness]
    then: Callable[[KueueHarness], object]
    """What happens."""
    state: str
    """Of the check, after it."""
    requests: tuple[str, ...]
    """What is there then; PodTemplates are of the same requests."""


def no_checks(harness: KueueHarness) -> None:
    harness.workload["status"]["admissionChecks"] = []


def set_config(**spec: Any) -> Callable[[KueueHarness], object]:
    return lambda harness: harness.configs.update({CHECK: config(**spec)})


def remove_config(harness: KueueHarness) -> None:
    harness.configs[CHECK] = "there is no ProvisioningRequestConfig config"


def stop(harness: KueueHarness) -> None:
    harness.workload["spec"]["active"] = False


def delete(harness: KueueHarness) -> None:
    harness.workload["metadata"]["deletionTimestamp"] = timestamp(NOW)


def suspend(harness: KueueHarness) -> None:
    harness.kueue_says(condition("QuotaReserved", False))


def finish(harness: KueueHarness) -> None:
    harness.kueue_says(condition("Finished", message="the job succeeded"))


def says(*conditions: dict[str, Any]) -> Callable[[KueueHarness], object]:
    return lambda harness: harness.says(*conditions)


def nothing(harness: KueueHarness) -> None:
    del harness


ONE, TWO = "job-capacity-1", "job-capacity-2"

KEP = {
    "a request is made once quota is reserved": Case(KueueHarness, nothing, PENDING, (ONE,)),
    "ProvisioningRequest is completed successfully": Case(asked, says(PROVISIONED), READY, (ONE,)),
    "ProvisioningRequest is completed successfully, by CapacityAvailable": Case(
        asked, says(condition("CapacityAvailable")), READY, (ONE,)
    ),
    "completed successfully, then Workload completes till success": Case(admitted, finish, READY, ()),
    "completed successfully, then Workload is preempted and goes back to suspend": Case(
        admitted, KueueHarness.kueue_evicts, PENDING, ()
    ),
    "completed successfully, then Workload is deleted": Case(admitted, delete, READY, ()),
    "ProvisioningRequest is failed (first form: Rejected at once)": Case(
        lambda: asked(configs={CHECK: config(**retries(0))}), says(FAILED), REJECTED, (ONE,)
    ),
    "ProvisioningRequest is failed (Kueue of today: Retry)": Case(asked, says(FAILED), RETRY, (ONE,)),
    "ProvisioningRequest is failed (v0.6.2: Pending until the retries end)": Case(
        lambda: asked(settings=KEEP), says(FAILED), PENDING, (ONE,)
    ),
    "Workload is deleted": Case(asked, delete, PENDING, ()),
    "Workload is suspended": Case(asked, suspend, PENDING, ()),
    "Queue definition changes and doesn't require any AdmissionChecks anymore": Case(asked, no_checks, "", ()),
    "ProvisioningRequestConfig changes": Case(asked, set_config(parameters={"Priority": "TopTier"}), PENDING, (ONE,)),
    "ProvisioningRequestConfig is removed": Case(asked, remove_config, PENDING, ()),
    "no pod set of interest (managedResources)": Case(
        KueueHarness, set_config(managedResources=["nvidia.com/gpu"]), READY, ()
    ),
}

MORE = {
    "Accepted waits with the estimate": Case(asked, says(ACCEPTED), PENDING, (ONE,)),
    "not found yet waits": Case(
        asked, says(condition("Provisioned", False, message="tried again in 60 s")), PENDING, (ONE,)
    ),
    "CapacityAvailable=False counts as failed": Case(
        asked, says(condition("CapacityAvailable", False, message="12 of 16 fit")), RETRY, (ONE,)
    ),
    "CapacityAvailable=False beside Provisioned does not": Case(
        asked, says(condition("CapacityAvailable", False), PROVISIONED), READY, (ONE,)
    ),
    "BookingExpired before admission is tried again": Case(ready, says(PROVISIONED, EXPIRED), RETRY, (ONE,)),
    "BookingExpired before admission, keeping quota": Case(
        lambda: ready(settings=KEEP), says(PROVISIONED, EXPIRED), PENDING, (ONE,)
    ),
    "BookingExpired of the last attempt is Rejected": Case(
        lambda: ready(configs={CHECK: config(**retries(0))}), says(PROVISIONED, EXPIRED), REJECTED, (ONE,)
    ),
    "BookingExpired after admission changes nothing": Case(admitted, says(PROVISIONED, EXPIRED), READY, (ONE,)),
    "CapacityRevoked after admission is Rejected": Case(admitted, says(PROVISIONED, REVOKED), REJECTED, (ONE,)),
    "CapacityRevoked before admission is Rejected": Case(ready, says(PROVISIONED, REVOKED), REJECTED, (ONE,)),
    "a configuration that changes leaves what is Ready": Case(
        ready, set_config(provisioningClassName="another.example.com"), READY, (ONE,)
    ),
    "a configuration that is removed leaves what is admitted": Case(admitted, remove_config, READY, (ONE,)),
    "a configuration that is removed takes Ready away before admission": Case(ready, remove_config, PENDING, ()),
    "deactivated": Case(asked, stop, PENDING, ()),
    "without quota nothing is made": Case(lambda: KueueHarness(workload=workload(reserved="")), nothing, PENDING, ()),
    "a check of another controller is left alone": Case(lambda: KueueHarness(configs={}), nothing, PENDING, ()),
    "Retry waits for Kueue": Case(lambda: answered(FAILED), nothing, RETRY, (ONE,)),
    "Retry, and Kueue evicts": Case(lambda: answered(FAILED), KueueHarness.kueue_evicts, PENDING, ()),
    "a request that somebody deleted is made anew": Case(
        asked, lambda harness: harness.requests.clear(), PENDING, (ONE,)
    ),
    "a request that somebody deletes after Ready is not": Case(
        ready, lambda harness: harness.requests.clear(), READY, ()
    ),
}


@pytest.mark.parametrize("name", [*KEP, *MORE])
def test_case(name: str) -> None:
    case = {**KEP, **MORE}[name]
    harness = case.before()
    case.then(harness)
    harness.settle()
    states = [each["state"] for each in harness.workload["status"]["admissionChecks"]]
    assert states == ([case.state] if case.state else [])
    assert tuple(harness.requests) == case.requests
    of = {template["metadata"]["annotations"]["kueue.cagrpc.io/request"] for template in harness.templates.values()}
    assert of == set(case.requests)
    assert harness.writes() == CheckWrites(again_seconds=harness.writes().again_seconds), "nothing is left to do"


# ---- what is asked for


def test_the_request_has_class_parameters_and_pods() -> None:
    harness = asked(
        workload=workload(
            annotations={
                "provreq.kueue.x-k8s.io/Priority": "low",
                "provreq.kueue.x-k8s.io/noRetry": "true",
                "other": "x",
            }
        ),
        configs={CHECK: config(parameters={"Priority": "TopTier", "ValidUntilSeconds": "600"})},
    )
    spec = harness.requests[ONE]["spec"]
    assert spec["provisioningClassName"] == CLASS
    assert spec["parameters"] == {"Priority": "low", "ValidUntilSeconds": "600", "noRetry": "true"}
    assert [(each["podTemplateRef"]["name"], each["count"]) for each in spec["podSets"]] == [
        (f"ppt-{ONE}-workers", 8),
        (f"ppt-{ONE}-head", 1),
    ]
    assert set(harness.templates) == {f"ppt-{ONE}-workers", f"ppt-{ONE}-head"}


def test_the_workload_owns_the_templates_and_the_first_of_them_the_request() -> None:
    harness = asked()
    for template in harness.templates.values():
        (owner,) = template["metadata"]["ownerReferences"]
        assert (owner["apiVersion"], owner["kind"], owner["name"], owner["uid"]) == (
            "kueue.x-k8s.io/v1beta2",
            "Workload",
            "job",
            "workload-uid",
        )
    (owner,) = harness.requests[ONE]["metadata"]["ownerReferences"]
    first = harness.templates[f"ppt-{ONE}-workers"]["metadata"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("PodTemplate", first["name"], first["uid"])
    assert owner["name"] != "job", "Kueue's own controller deletes what is owned by the Workload's name"


def test_flavors_add_labels_and_tolerations_and_limits_are_requests() -> None:
    toleration = {"key": "spot", "operator": "Exists"}
    pods = pod_set("workers", 2, nodeSelector={"zone": "a"}, tolerations=[toleration])
    pods["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "2", "nvidia.com/gpu": "1"}
    pods["template"]["metadata"] = {"labels": {"app": "x"}, "annotations": {"a": "b"}, "name": "dropped"}
    harness = asked(
        workload=workload(pods, flavors={"cpu": "spot", "nvidia.com/gpu": "gpu"}),
        flavors=[
            flavor("spot", nodeLabels={"zone": "a", "spot": "true"}, tolerations=[toleration]),
            flavor("gpu", nodeLabels={"gpu": "h100"}, tolerations=[{"key": "gpu", "operator": "Exists"}]),
        ],
    )
    template = harness.templates[f"ppt-{ONE}-workers"]["template"]
    assert template["metadata"] == {"labels": {"app": "x"}, "annotations": {"a": "b"}}
    assert template["spec"]["nodeSelector"] == {"zone": "a", "spot": "true", "gpu": "h100"}
    assert template["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}, toleration][::-1]
    assert template["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}


def test_a_missing_or_contradicting_flavor_is_reported() -> None:
    harness = asked(flavors=[])
    assert harness.state["state"] == PENDING
    assert harness.state["message"] == "pod set workers is admitted to ResourceFlavor plain, which does not exist"
    pods = pod_set("workers", 1, nodeSelector={"zone": "a"})
    harness = asked(workload=workload(pods), flavors=[flavor(nodeLabels={"zone": "b"})])
    assert harness.state["message"] == (
        "pod set workers selects nodes with zone=a, and its ResourceFlavor plain has zone=b"
    )
    assert not harness.requests


def test_only_pod_sets_with_managed_resources_are_asked_for() -> None:
    gpus = pod_set("gpus", 4, {"nvidia.com/gpu": "8"})
    init = pod_set("init", 1)
    init["template"]["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    harness = asked(
        workload=workload(pod_set("head", 1), gpus, init),
        configs={CHECK: config(managedResources=["nvidia.com/gpu"])},
    )
    names = [each["podTemplateRef"]["name"] for each in harness.requests[ONE]["spec"]["podSets"]]
    assert names == [f"ppt-{ONE}-gpus", f"ppt-{ONE}-init"]
    harness.says(PROVISIONED)
    harness.settle()
    assert [each["name"] for each in harness.state["podSetUpdates"]] == ["gpus", "init"]


def test_partial_admission_counts() -> None:
    harness = asked(workload=workload(counts={"workers": 5, "head": 0}))
    assert [each["count"] for each in harness.requests[ONE]["spec"]["podSets"]] == [5]


ALIKE = [pod_set("a", 2, {"cpu": "1"}), pod_set("b", 3, {"cpu": "1000m"}), pod_set("c", 1, {"cpu": "2"})]


@pytest.mark.parametrize(
    ("policy", "other_image", "counts"),
    [
        ("", False, [2, 3, 1]),
        ("IdenticalPodTemplates", False, [5, 1]),
        ("IdenticalPodTemplates", True, [2, 3, 1]),
        ("IdenticalWorkloadSchedulingRequirements", True, [5, 1]),
    ],
)
def test_pod_sets_are_merged_by_policy(policy: str, other_image: bool, counts: list[int]) -> None:
    sets = [
        pod_set(each["name"], each["count"], {"cpu": cpu}) for each, cpu in zip(ALIKE, ("1", "1000m", "2"), strict=True)
    ]
    if other_image:
        sets[1]["template"]["spec"]["containers"][0]["image"] = "example.com/other"
    harness = ready(
        workload=workload(*sets), configs={CHECK: config(**({"podSetMergePolicy": policy} if policy else {}))}
    )
    assert [each["count"] for each in harness.requests[ONE]["spec"]["podSets"]] == counts
    assert [each["name"] for each in harness.state["podSetUpdates"]] == ["a", "b", "c"], "also those that were merged"


def test_pod_sets_of_other_flavors_are_not_merged() -> None:
    made = workload(pod_set("a", 1), pod_set("b", 1))
    made["status"]["admission"]["podSetAssignments"][1]["flavors"] = {"cpu": "spot"}
    harness = asked(
        workload=made,
        flavors=[flavor(), flavor("spot", nodeLabels={"spot": "true"})],
        configs={CHECK: config(podSetMergePolicy="IdenticalPodTemplates")},
    )
    assert [each["count"] for each in harness.requests[ONE]["spec"]["podSets"]] == [1, 1]


# ---- what the pods get


def test_ready_pods_consume_and_are_led_to_their_nodes() -> None:
    selectors = [
        {"key": "example.com/pool", "valueFromProvisioningClassDetail": "pool"},
        {"key": "cagrpc.io/booked", "valueFromProvisioningClassDetail": "nodeSelector"},
        {"key": "example.com/absent", "valueFromProvisioningClassDetail": "absent"},
    ]
    harness = answered(
        PROVISIONED,
        details={"nodeSelector": "booking.cagrpc.io/u-1=true", "pool": "p-7"},
        configs={CHECK: config(podSetUpdates={"nodeSelector": selectors})},
    )
    first, second = harness.state["podSetUpdates"]
    assert (first["name"], second["name"]) == ("workers", "head")
    found = consumption(first["annotations"])
    assert found is not None
    assert (found.request, found.class_name, found.missing) == (ONE, CLASS, "")
    assert first["annotations"]["cluster-autoscaler.kubernetes.io/consume-provisioning-request"] == ONE
    assert first["annotations"]["autoscaling.x-k8s.io/provisioning-class-name"] == CLASS
    assert first["nodeSelector"] == {"example.com/pool": "p-7", "booking.cagrpc.io/u-1": "true"}


def test_updates_go_when_ready_goes() -> None:
    harness = ready(settings=KEEP)
    assert harness.state["podSetUpdates"]
    harness.says(PROVISIONED, EXPIRED)
    harness.settle()
    assert "podSetUpdates" not in harness.state


# ---- what people are told


def test_the_message_has_the_explanation_the_counter_offer_cost_and_gap() -> None:
    details = {"costPerHour": "12.5", "lowerBoundPerHour": "12.0", "gap": "0.04", "nodeGroups": "gpu-b=2,cpu=1"}
    harness = answered(ACCEPTED, details=details)
    assert harness.state["message"] == (
        "ready in about 90 s: 2 nodes of gpu-b; costs 12.5 USD an hour, at least 12.0 (gap 0.04);"
        " node groups gpu-b=2,cpu=1"
    )
    harness = answered(FAILED)
    assert harness.state["message"] == (
        "attempt 1 of 4 failed: 7 of 8 workers fit now; all 8 if gpu-b may grow by 1; Kueue may admit it again in 60 s"
    )
    harness = answered(FAILED, configs={CHECK: config(**retries(0))})
    assert harness.state["message"] == ("attempt 1 of 1 failed: 7 of 8 workers fit now; all 8 if gpu-b may grow by 1")


def test_the_time_of_the_check_is_that_of_its_state() -> None:
    harness = asked(now=NOW + 5)
    assert harness.state["lastTransitionTime"] == timestamp(NOW - 60), "Pending as before"
    harness.says(PROVISIONED)
    harness.settle()
    assert harness.state["lastTransitionTime"] == timestamp(NOW + 5)


def test_what_kueue_keeps_in_its_checks_stays() -> None:
    other = check_state("quota-of-another", READY, retryCount=4, message="theirs")
    mine = check_state(retryCount=2, later="a field of tomorrow")
    harness = asked(workload=workload(checks=[other, mine]))
    first, second = harness.workload["status"]["admissionChecks"]
    assert first == other
    assert (second["retryCount"], second["later"]) == (2, "a field of tomorrow")


# ---- retries


def test_released_attempts_are_counted_by_kueue_and_wait_longer_each_time() -> None:
    harness, pauses = asked(), []
    while True:
        harness.says(FAILED)
        harness.settle()
        if harness.state["state"] != RETRY:
            break
        pauses.append(harness.state["requeueAfterSeconds"])
        harness.kueue_evicts()
        harness.settle()
        assert not harness.requests
        harness.now += pauses[-1]
        harness.kueue_reserves()
        harness.settle()
    assert harness.made == [f"job-capacity-{attempt}" for attempt in (1, 2, 3, 4)]
    assert pauses == [60, 120, 240]
    assert harness.state["state"] == REJECTED
    assert "attempt 4 of 4" in harness.state["message"]


def test_kept_attempts_stay_pending_until_the_last() -> None:
    harness, times = asked(settings=KEEP), []
    for _ in range(3):
        harness.says(condition("Failed", since=harness.now))
        harness.settle()
        again = harness.writes().again_seconds
        assert again is not None
        times.append(again)
        assert harness.state["state"] == PENDING
        harness.now += again - 1
        assert not harness.settle()
        harness.now += 1
        harness.settle()
        assert len(harness.requests) == 1
    assert times == [60, 120, 240]
    harness.says(condition("Failed", message="no more", since=harness.now))
    harness.settle()
    assert (harness.made[-1], harness.state["state"]) == ("job-capacity-4", REJECTED)


def test_the_pause_is_never_longer_than_the_longest() -> None:
    strategy = retries(10, base=100, longest=150)
    harness = answered(
        FAILED, configs={CHECK: config(**strategy)}, workload=workload(checks=[check_state(retryCount=6)])
    )
    assert (harness.made, harness.state["requeueAfterSeconds"]) == (["job-capacity-7"], 150)


def test_after_a_preemption_it_begins_anew() -> None:
    harness = admitted()
    harness.kueue_evicts()
    harness.now += 30
    harness.kueue_reserves()  # and nobody looked in between: the request of before is still there
    (writes, *_) = harness.settle()
    assert [each.name for each in writes.in_the_way if each.resource == "provisioningrequests"] == [ONE]
    assert (harness.made, list(harness.requests)) == ([ONE, ONE], [ONE])
    assert "status" not in harness.requests[ONE]
    assert (harness.state["state"], harness.state.get("podSetUpdates")) == (PENDING, None)


def test_updates_that_an_eviction_left_are_never_ready_ones() -> None:
    harness = admitted()
    harness.kueue_evicts()
    assert harness.state["podSetUpdates"]
    harness.settle()
    harness.configs[CHECK] = config(managedResources=["nvidia.com/gpu"])
    harness.kueue_reserves()
    harness.settle()
    assert (harness.state["state"], harness.state.get("podSetUpdates"), harness.requests) == (READY, None, {})


def test_a_workload_that_is_activated_again_after_its_last_attempt_has_all_of_them() -> None:
    harness = answered(
        FAILED, configs={CHECK: config(**retries(1))}, workload=workload(checks=[check_state(retryCount=1)])
    )
    assert (harness.made, harness.state["state"]) == ([TWO], REJECTED)
    stop(harness)
    harness.kueue_evicts()
    harness.settle()
    harness.workload["spec"]["active"] = True
    harness.kueue_reserves()
    harness.settle()
    assert (harness.made, list(harness.requests)) == ([TWO, ONE], [ONE])


def test_a_new_configuration_begins_a_new_series() -> None:
    harness = answered(FAILED, settings=KEEP)
    harness.now += 60
    harness.settle()
    assert list(harness.requests) == [TWO]
    harness.configs[CHECK] = config(parameters={"more": "patience"})
    harness.settle()
    assert list(harness.requests) == [ONE]
    assert harness.requests[ONE]["spec"]["parameters"] == {"more": "patience"}


def test_requests_out_of_step_are_replaced_by_anything_that_is_asked_for() -> None:
    changes: list[dict[str, Any]] = [
        {"provisioningClassName": "another.example.com"},
        {"parameters": {"a": "b"}},
        {"managedResources": ["nvidia.com/gpu"]},
        {"podSetMergePolicy": "IdenticalPodTemplates"},
    ]
    sets = [pod_set("a", 1), pod_set("b", 1), pod_set("c", 1, {"nvidia.com/gpu": "1"})]
    for change in changes:
        harness = asked(workload=workload(*sets))
        harness.configs[CHECK] = config(**change)
        (writes, *_) = harness.settle()
        assert [each.replaces for each in writes.creations] == [True], change
        assert len(harness.made) == 2


def test_retries_of_a_configuration_that_change_replace_nothing() -> None:
    harness = asked()
    harness.configs[CHECK] = config(**retries(7))
    harness.settle()
    assert harness.made == [ONE]


# ---- several checks


def test_each_check_has_requests_of_its_own() -> None:
    checks = [check_state("first"), check_state("theirs"), check_state("second")]
    harness = KueueHarness(
        workload=workload(checks=checks), configs={"first": config(), "second": config(**retries(0))}
    )
    harness.settle()
    assert sorted(harness.requests) == ["job-first-1", "job-second-1"]
    harness.says(FAILED, name="job-second-1")
    harness.says(PROVISIONED, name="job-first-1")
    harness.settle()
    states = {each["name"]: each["state"] for each in harness.workload["status"]["admissionChecks"]}
    assert states == {"first": READY, "theirs": PENDING, "second": REJECTED}
    harness.workload["status"]["admissionChecks"] = [checks[0]]
    harness.settle()
    assert sorted(harness.requests) == ["job-first-1"]
