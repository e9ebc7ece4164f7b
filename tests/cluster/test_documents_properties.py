"""The same cluster, from files and from watches."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.encoding.messages import message_to_dict
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.documents import DocumentReader
from cagrpc.cluster.view.model import JOB_SETS
from tests.cluster.view.test_properties import nodes, pods
from tests.support.controllers.cluster_objects import NOW, Fed, comparable
from tests.support.examples import examples


def document(message: Message) -> ManifestDocument:
    kind = message.DESCRIPTOR.name
    body = {"kind": kind, **message_to_dict(message)}
    return ManifestDocument(f"{kind} {body['metadata']['name']}", body)


def named(found: list[Any]) -> list[Any]:
    """Return the last of each name; a pod of no containers is none."""
    latest = {each.metadata.name: each for each in found}
    return [each for each in latest.values() if each.DESCRIPTOR.name != "Pod" or each.spec.containers]


@examples(300)
@given(st.lists(pods(), max_size=8), st.lists(nodes, max_size=2))
def test_files_describe_what_is_watched(found: list[kubernetes_pb2.Pod], standing: list[kubernetes_pb2.Node]) -> None:
    watched = Fed()
    watched.relist(named(standing), path="/api/v1/nodes")
    watched.relist(named(found))
    reader = DocumentReader(NOW)
    reader.add(map(document, (*named(found), *named(standing))))
    described = reader.read()
    one, of_nodes = comparable(watched.state())
    other, of_others = comparable(described.state)
    assert (one.waiting, one.nodes, of_nodes) == (other.waiting, other.nodes, of_others)
    assert (one.incomplete_gangs, one.consumers, one.consumers_missing_annotation) == (
        other.incomplete_gangs, other.consumers, other.consumers_missing_annotation
    )  # fmt: skip
    unreadable = {each.metadata.name for each in named(found) if "many" in str(each.spec)}
    assert {each.partition(": ")[0] for each in reader.problems} == {f"Pod {name}" for name in unreadable}


@st.composite
def job_sets(draw: st.DrawFn) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": draw(st.sampled_from(("1", "500m")))}}}
    jobs = []
    for number in range(draw(st.integers(1, 3))):
        counts: dict[str, Any] = draw(
            st.dictionaries(st.sampled_from(("parallelism", "completions")), st.integers(0, 3))
        )
        template = {"spec": {"containers": [container], "priority": 0}}
        job: dict[str, Any] = {"name": f"j{number}", "replicas": draw(st.integers(0, 3)), "template": {"spec": counts}}
        counts["template"] = template
        if number and draw(st.integers(0, 3)) == 0:
            job["dependsOn"] = [{"name": "j0", "status": "Ready"}]
        jobs.append(job)
    spec: dict[str, Any] = {"replicatedJobs": jobs, "suspend": draw(st.integers(0, 5)) == 0}
    if draw(st.integers(0, 3)) == 0:
        spec["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    return {"metadata": {"name": "set", "namespace": "default"}, "spec": spec}


quotas = st.builds(
    lambda hard, used: {"metadata": {"name": "q", "namespace": "default"}, "status": {"hard": hard, "used": used}},
    st.dictionaries(st.sampled_from(("cpu", "requests.cpu", "pods", "count/pods")), st.integers(0, 12)),
    st.dictionaries(st.sampled_from(("cpu", "pods")), st.integers(0, 3)),
)


@examples(200)
@given(job_sets(), st.lists(quotas, max_size=1))
def test_job_sets_and_quotas_mean_the_same_in_files(job_set: dict[str, Any], limits: list[dict[str, Any]]) -> None:
    watched = Fed(expects=True)
    watched.put(*limits, path="/api/v1/resourcequotas")
    watched.put(job_set, path=JOB_SETS)
    reader = DocumentReader(NOW)
    of_kinds = (("JobSet", job_set), *(("ResourceQuota", each) for each in limits))
    reader.add(ManifestDocument(kind, {"kind": kind, **each}) for kind, each in of_kinds)
    described = reader.read().state
    assert not reader.problems
    assert described.waiting_pods == watched.state().waiting_pods
