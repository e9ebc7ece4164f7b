"""The admission check controller against a real API server: the scenarios of KEP-1136 by name, with a test that plays
Kueue and flips the ProvisioningRequest's state, as the KEP asks for. Both versions of Kueue's API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.kueue import PENDING, READY, REJECTED, RETRY
from cagrpc.controllers.admission_checks.controller import AdmissionCheckController
from cagrpc.controllers.admission_checks.reconcile import FIRST_NAME, KUEUES_NAME
from cagrpc.controllers.events import EventRecorder, EventSource, Note
from cagrpc.controllers.settings import KueueSettings, RetryMode
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock, epoch
from tests.support.controlplane import kueue as played
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import install_crds, remove_crds
from tests.support.controlplane.kueue import CHECK, CLASS, OURS, PlayedKueue
from tests.support.controlplane.plane import ControlPlane
from tests.support.fleet import FakeClock
from tests.support.kills import Killed

ONE, TWO = "job-capacity-1", "job-capacity-2"
KEEP = KueueSettings(retry_mode=RetryMode.KEEP)


OLDER = pytest.param("v1beta1", marks=pytest.mark.long("the same by the older version of Kueue's API"))
both_versions = pytest.mark.parametrize("version", ["v1beta2", "v1beta1"], indirect=True)
"""Each day: what is written and read of each kind differs in them."""


@pytest.fixture(scope="module", params=["v1beta2", OLDER])
def version(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[str]:
    """Where v1beta2 is served, v1beta1 is too, and not the other way round."""
    served = ("v1beta2", "v1beta1") if request.param == "v1beta2" else ("v1beta1",)
    played.install(control_plane, *served)
    install_crds(control_plane.admin, "provisioning-crds.yaml")
    control_plane.restart_controller_manager()
    yield request.param
    played.remove(control_plane)
    remove_crds(control_plane.admin, "provisioning-crds.yaml")


@pytest.fixture
def kueue(version: str, cluster: Cluster) -> Iterator[PlayedKueue]:
    kueue = PlayedKueue(cluster, version)
    yield kueue
    kueue.tidy()


class Running:
    """The controller at work, as `serve` runs it but for the time."""

    def __init__(self, client: Client, settings: KueueSettings | None = None, clock: EpochClock = epoch) -> None:
        self.notes: list[Note] = []
        self.checks = AdmissionCheckController(client, settings or KueueSettings(), record=self.notes.append, now=clock)
        self.checks.start()
        self.checks.step()

    def stop(self) -> None:
        self.checks.stop()


@pytest.fixture
def run(client: Client) -> Iterator[Callable[..., Running]]:
    """Starts a controller; all are stopped at the end."""
    started: list[Running] = []

    def start(*arguments: Any, **more: Any) -> Running:
        started.append(Running(client, *arguments, **more))
        return started[-1]

    yield start
    for each in started:
        each.stop()


Run = Callable[..., Running]


def _counted(running: Running, action: str) -> float:
    samples = (each for of in running.checks.collectors() for family in of.collect() for each in family.samples)
    return sum(each.value for each in samples if each.name.endswith("_total") and each.labels["action"] == action)


def asked(kueue: PlayedKueue, **spec: Any) -> None:
    """A job has gone to a queue with the check, and has quota; its request is there."""
    kueue.configure(**spec)
    kueue.submit()
    kueue.reserve()
    kueue.wait_for_requests(ONE)


def admitted(kueue: PlayedKueue) -> None:
    """Its request is completed successfully, and Kueue has admitted it."""
    asked(kueue)
    kueue.answer(ONE, "Accepted", "Provisioned")
    kueue.wait_for_state(READY)
    kueue.admit()


@both_versions
def test_the_appropriate_request_is_created_with_the_right_provisioning_class(kueue: PlayedKueue, run: Run) -> None:
    run()
    asked(kueue, parameters={"Priority": "TopTier"})
    request = kueue.admin.get(kueue.request_path(ONE))
    assert request["spec"] == {
        "provisioningClassName": CLASS,
        "parameters": {"Priority": "TopTier"},
        "podSets": [{"podTemplateRef": {"name": f"ppt-{ONE}-workers"}, "count": 3}],
    }
    template = kueue.admin.get(kueue.cluster.path("podtemplates", f"ppt-{ONE}-workers"))
    assert template["template"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    (owner,) = template["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["apiVersion"]) == ("Workload", "job", f"kueue.x-k8s.io/{kueue.version}")
    (owner,) = request["metadata"]["ownerReferences"]
    assert owner["uid"] == template["metadata"]["uid"]
    assert kueue.active() == ("True", f"requests of class {CLASS} are made for Workloads")


@both_versions
def test_provisioning_request_is_completed_successfully(kueue: PlayedKueue, run: Run) -> None:
    running = run()
    asked(kueue)
    kueue.answer(ONE, "Accepted", "!Provisioned", message="ready in about 60 s")
    kueue.wait("the estimate is told", lambda: kueue.message() == "ready in about 60 s")
    assert kueue.state() == PENDING
    kueue.answer(ONE, "Accepted", "Provisioned", message="all of it is there", costPerHour="3.5")
    kueue.wait_for_state(READY)
    (check,) = kueue.checks()
    (update,) = check["podSetUpdates"]
    assert update["name"] == "workers"
    assert update["annotations"] == {**dict.fromkeys(CONSUME_KEYS, ONE), **dict.fromkeys(CLASS_KEYS, CLASS)}
    assert check["message"] == "all of it is there; costs $3.50/h"
    kueue.wait("it is counted", lambda: _counted(running, "checks_ready") == 1)
    assert _counted(running, "requests_made") == 1
    assert [note.reason for note in running.notes] == ["ProvisioningRequestCreated", "AdmissionCheckUpdated"]


def test_completed_then_workload_completes_till_success(kueue: PlayedKueue, run: Run) -> None:
    run()
    admitted(kueue)
    kueue.finish()
    kueue.wait_for_requests()


def test_completed_then_workload_is_preempted_and_goes_back_to_suspend(kueue: PlayedKueue, run: Run) -> None:
    run()
    admitted(kueue)
    before = kueue.admin.get(kueue.request_path(ONE))["metadata"]["uid"]
    kueue.evict()
    kueue.wait_for_requests()
    assert "podSetUpdates" in kueue.checks()[0]
    kueue.reserve()
    kueue.wait_for_requests(ONE)
    assert kueue.admin.get(kueue.request_path(ONE))["metadata"]["uid"] != before
    kueue.wait("the updates of before are gone", lambda: "podSetUpdates" not in kueue.checks()[0])
    kueue.wait_for_state(PENDING)


def test_completed_then_workload_is_deleted(kueue: PlayedKueue, run: Run) -> None:
    run()
    admitted(kueue)
    kueue.admin.delete(kueue.path("job"))
    kueue.wait_for_requests()


@both_versions
def test_provisioning_request_is_failed(kueue: PlayedKueue, run: Run) -> None:
    run()
    asked(kueue)
    for attempt, pause in ((1, 60), (2, 120), (3, 240)):
        name = f"job-capacity-{attempt}"
        kueue.answer(name, "Failed", message="7 of 8 fit now; all 8 if gpu-b may grow by 1")
        kueue.wait_for_state(RETRY)
        (check,) = kueue.checks()
        assert check["requeueAfterSeconds"] == pause
        assert "all 8 if gpu-b may grow by 1" in check["message"]
        kueue.evict()
        kueue.wait_for_requests()
        kueue.reserve()
        kueue.wait_for_requests(f"job-capacity-{attempt + 1}")
    kueue.answer("job-capacity-4", "Failed")
    kueue.wait_for_state(REJECTED)


def test_provisioning_request_is_failed_first_form(kueue: PlayedKueue, run: Run) -> None:
    run()
    asked(kueue, retryStrategy={"backoffLimitCount": 0})
    kueue.answer(ONE, "Failed", message="never")
    kueue.wait_for_state(REJECTED)
    assert kueue.message() == "attempt 1 of 1 failed: never"


def test_provisioning_request_is_failed_and_the_quota_kept(kueue: PlayedKueue, run: Run) -> None:
    # the text of v0.6.2: the check remains Pending until the retries end
    clock = FakeClock(1_800_000_000.0)
    running = run(KEEP, clock=clock)
    asked(kueue, retryStrategy={"backoffLimitCount": 1, "backoffBaseSeconds": 60})
    kueue.answer(ONE, "Failed", message="not now")
    kueue.wait("it is told", lambda: "attempt 1 of 2 failed: not now; asked for again at" in kueue.message())
    assert kueue.requests() == [ONE]
    clock.advance(3600)
    running.checks.queue.add(("workload", f"{kueue.cluster.namespace}/job"))
    kueue.wait_for_requests(TWO)
    assert kueue.state() == PENDING
    kueue.answer(TWO, "Failed", message="nor ever")
    kueue.wait_for_state(REJECTED)


def test_workload_is_deleted(kueue: PlayedKueue, run: Run) -> None:
    run()
    asked(kueue)
    kueue.admin.delete(kueue.path("job"))
    kueue.wait_for_requests()


def test_workload_is_suspended(kueue: PlayedKueue, run: Run) -> None:
    run()
    asked(kueue)
    kueue.evict()
    kueue.wait_for_requests()


def test_queue_definition_changes_and_does_not_require_any_admission_checks_anymore(
    kueue: PlayedKueue, run: Run
) -> None:
    run()
    asked(kueue)
    kueue.require()
    kueue.wait_for_requests()
    assert kueue.checks() == []


def test_provisioning_request_config_changes(kueue: PlayedKueue, run: Run) -> None:
    running = run()
    asked(kueue)
    before = kueue.admin.get(kueue.request_path(ONE))["metadata"]["uid"]
    kueue.config(parameters={"Priority": "TopTier"})
    kueue.wait("it is replaced", lambda: _counted(running, "requests_replaced") == 1)
    kueue.wait_for_requests(ONE)
    request = kueue.admin.get(kueue.request_path(ONE))
    assert request["metadata"]["uid"] != before
    assert request["spec"]["parameters"] == {"Priority": "TopTier"}


def test_provisioning_request_config_changes_and_what_is_ready_stays(kueue: PlayedKueue, run: Run) -> None:
    running = run()
    asked(kueue)
    kueue.answer(ONE, "Provisioned")
    kueue.wait_for_state(READY)
    before = kueue.admin.get(kueue.request_path(ONE))["metadata"]["uid"]
    kueue.config(provisioningClassName="another.example.com")
    kueue.wait("the check says so", lambda: "another.example.com" in kueue.active()[1])
    running.checks.queue.add(("workload", f"{kueue.cluster.namespace}/job"))
    kueue.submit("later")
    kueue.reserve("later")
    kueue.wait("others get the new one", lambda: "later-capacity-1" in kueue.requests())
    assert kueue.admin.get(kueue.request_path(ONE))["metadata"]["uid"] == before
    assert kueue.state() == READY


@both_versions
def test_provisioning_request_config_is_removed(kueue: PlayedKueue, run: Run) -> None:
    run()
    asked(kueue)
    kueue.remove_config()
    kueue.wait_for_requests()
    kueue.wait("the check is inactive", lambda: kueue.active()[0] == "False")
    kueue.wait("it is told", lambda: kueue.message().startswith("the check is not active: there is no Provisioning"))
    kueue.config()
    kueue.wait_for_requests(ONE)
    kueue.wait("the check is active again", lambda: kueue.active()[0] == "True")


def test_no_pod_set_of_interest(kueue: PlayedKueue, run: Run) -> None:
    run()
    kueue.configure(managedResources=["nvidia.com/gpu"])
    kueue.submit()
    kueue.reserve()
    kueue.wait_for_state(READY)
    assert kueue.requests() == []


def test_booking_expires_before_admission_and_capacity_is_revoked_after(kueue: PlayedKueue, run: Run) -> None:
    run()
    asked(kueue)
    kueue.answer(ONE, "Provisioned")
    kueue.wait_for_state(READY)
    kueue.answer(ONE, "Provisioned", "BookingExpired")
    kueue.wait_for_state(RETRY)
    kueue.evict()
    kueue.wait_for_requests()
    kueue.reserve()
    kueue.wait_for_requests(TWO)
    kueue.answer(TWO, "Provisioned")
    kueue.wait_for_state(READY)
    kueue.admit()
    kueue.answer(TWO, "Provisioned", "CapacityRevoked", message="node n-1 is gone")
    kueue.wait_for_state(REJECTED)
    assert kueue.message() == "node n-1 is gone"


# ---- whose checks


def test_the_first_forms_controller_name_is_accepted(kueue: PlayedKueue, run: Run) -> None:
    run()
    kueue.configure(controller=FIRST_NAME)
    kueue.submit()
    kueue.reserve()
    kueue.wait_for_requests(ONE)


def test_kueues_own_name_is_refused_where_its_controller_runs(kueue: PlayedKueue, run: Run) -> None:
    kueue.configure(controller=KUEUES_NAME)
    patch = {"status": {"conditions": [kueue.condition("Active", True)]}}
    kueue.admin.merge(f"{kueue.collection('admissionchecks', CHECK)}/status", patch)
    kueue.submit()
    kueue.reserve()
    running = run(KueueSettings(controller_name=KUEUES_NAME))
    kueue.wait("it is refused", lambda: running.checks.status()["admission_checks"].get("refused"))
    assert "cannot be switched off" in running.checks.status()["admission_checks"]["refused"]
    (note,) = running.notes
    assert (note.about.kind, note.reason, note.warning) == ("AdmissionCheck", "Refused", True)
    assert kueue.requests() == []


# ---- beside others, and whatever happens


class Mortal(Client):
    """A client whose process is killed before its second write."""

    left = 1

    def _counted(self) -> None:
        if self.left <= 0:
            raise Killed
        self.left -= 1

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._counted()
        return super().create(path, body)

    def patch(self, path: str, body: Any, *arguments: Any, **more: Any) -> dict[str, Any]:
        self._counted()
        return super().patch(path, body, *arguments, **more)

    def delete(self, path: str, **options: Any) -> None:
        self._counted()
        super().delete(path, **options)


def test_a_kill_between_any_two_writes(kueue: PlayedKueue, run: Run, cluster: Cluster) -> None:
    kueue.configure()
    kueue.submit(pods={"workers": 3, "head": 1})
    kueue.reserve()
    mortal = Mortal.connect(cluster.plane.kubeconfig())
    died = 0
    for _ in range(20):
        mortal.left = 1
        checks = AdmissionCheckController(mortal, KueueSettings())
        checks.step()
        kueue.wait("all is listed", lambda checks=checks: checks._store is not None and checks._store.synced)
        try:
            for _ in range(3):
                checks._reconcile(("check", CHECK))
                checks._reconcile(("workload", f"{cluster.namespace}/job"))
        except Killed:
            died += 1
            continue
        finally:
            checks.stop()
            assert len(kueue.requests()) <= 1
        break
    mortal.close()
    assert died >= 3, "at each of the writes"
    run()
    kueue.wait_for_requests(ONE)
    kueue.answer(ONE, "Provisioned")
    kueue.wait_for_state(READY)
    kueue.evict()
    kueue.wait_for_requests()


def test_what_others_write_at_the_same_time_stays(kueue: PlayedKueue, run: Run) -> None:
    running = run()
    asked(kueue)
    kueue.answer(ONE, "Provisioned")
    for number in range(20):  # each write of ours is based on what it has seen
        kueue.admin.merge(f"{kueue.path('job')}/status", {"status": {"requeueState": {"count": number}}})
    kueue.wait_for_state(READY)
    status = kueue.workload()["status"]
    assert status["requeueState"] == {"count": 19}
    assert {each["type"] for each in status["conditions"]} == {"QuotaReserved", "Evicted"}
    assert running.checks.problem is None


def test_a_request_of_that_name_that_is_not_ours_is_left_alone_and_told(kueue: PlayedKueue, run: Run) -> None:
    body = {
        "metadata": {"name": ONE},
        "spec": {
            "provisioningClassName": "theirs",
            "podSets": [{"podTemplateRef": {"name": "theirs"}, "count": 1}],
        },
    }
    api = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
    kueue.admin.create(kueue.request_path(), {**api, **body})
    run()
    kueue.configure()
    kueue.submit()
    kueue.reserve()
    kueue.wait("it is told", lambda: "another ProvisioningRequest of that name exists" in kueue.message())
    assert kueue.admin.get(kueue.request_path(ONE))["spec"]["provisioningClassName"] == "theirs"
    kueue.admin.delete(kueue.request_path(ONE))
    kueue.wait(
        "it is made then", lambda: kueue.message() == f"ProvisioningRequest {ONE} (attempt 1 of 4) waits for an answer"
    )


def test_events_are_found_with_the_workload(kueue: PlayedKueue, run: Run, client: Client) -> None:
    events = EventRecorder(client, EventSource(OURS, "AnsweringAdmissionCheck"), clock=epoch)
    running = run()
    asked(kueue)
    kueue.wait("a note is there", lambda: running.notes)
    events.event(running.notes[0])
    assert events.write_due() == 1
    uid = kueue.workload()["metadata"]["uid"]
    (found,) = client.get(kueue.cluster.path("events"), {"fieldSelector": f"involvedObject.uid={uid}"})["items"]
    assert (found["reason"], found["message"]) == ("ProvisioningRequestCreated", f"ProvisioningRequest {ONE} is made")
