"""A hostile tenant: pods, workloads, PodTemplates and ProvisioningRequests in one namespace, with every annotation,
label and field that cagrpc reads."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from hypothesis import strategies as st

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, MIN_COUNT, VOLCANO_GROUP
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.core.slack import EXCLUDE, MIRROR, PLACEHOLDER, PRIORITY_CLASS, SHAPE
from cagrpc.api.kueue import PARAMETER_ANNOTATIONS
from cagrpc.cluster.markers import BOOKING_LABELS, SCALE_DOWN_DISABLED
from cagrpc.controllers.admission_checks.model import ATTEMPT
from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.provisioning import API as REQUESTS
from tests.support.controlplane.provisioning import ATOMIC, CHECK

RBAC = "apis/rbac.authorization.k8s.io/v1"
MOST_PODS = 30
A_NODE = "a-node"
"""Stands for the name of a node that there is."""

TEXTS = {
    **{
        text: text for text in ("", "true", "false", "0", "1", "-1", "2147483647", "٣", "²", "NaN", "null", "a/b", "{}")
    },
    **{text: text for text in ("1e999999999", "victim", "capacityBufferFakePod", "\x00", "\ud7ff")},
    "digits": "9" * 5000,
    "nested": '{"a":' * 2000,
    "long": "x" * 20_000,
}
texts = st.sampled_from(sorted(TEXTS)).map(TEXTS.__getitem__)
label_values = st.sampled_from(["", "true", "a", "2147483647", "x" * 63, "victim"])
of_annotations: st.SearchStrategy[Any] = st.dictionaries(
    st.sampled_from(
        [
            *(MIRROR, EXCLUDE, SHAPE, "podType", MIN_COUNT, VOLCANO_GROUP, ATTEMPT, SCALE_DOWN_DISABLED),
            *(*CONSUME_KEYS, *CLASS_KEYS, PARAMETER_ANNOTATIONS + "ValidUntilSeconds"),
            *("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"),
        ]
    ),
    texts,
    max_size=5,
)
of_labels = st.dictionaries(
    st.sampled_from(
        [
            *(PLACEHOLDER, DEFAULT_GANG_LABEL, "app", BOOKING_LABELS + "a", "kueue.x-k8s.io/managed"),
            *("kueue.x-k8s.io/queue-name", "jobset.sigs.k8s.io/replicatedjob-name", "pod-template-hash"),
        ]
    ),
    label_values,
    max_size=4,
)
quantities = st.sampled_from(
    ["0", "1", "1500m", "3", "1e3", "999999999", "1n", "9223372036854775807", "1e18", "1Ei", "0.1"]
)
KEYS = ["kubernetes.io/hostname", "pool", "topology.kubernetes.io/zone", "app", "x" * 63]
requirements = st.fixed_dictionaries(
    {"key": st.sampled_from(KEYS), "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])},
    optional={"values": st.lists(st.sampled_from(["a", "only", "1", "9" * 60]), max_size=3)},
)
node_terms = st.fixed_dictionaries({"matchExpressions": st.lists(requirements, min_size=1, max_size=3)})
selectors: st.SearchStrategy[Any] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"matchLabels": st.dictionaries(st.sampled_from(["app", PLACEHOLDER]), label_values, max_size=2)}
    ),
)
pod_terms: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from(KEYS), "labelSelector": selectors},
    optional={"namespaceSelector": st.just({})},
)
affinities = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.fixed_dictionaries(
            {
                "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                    {"nodeSelectorTerms": st.lists(node_terms, min_size=1, max_size=3)}
                )
            }
        ),
        "podAffinity": st.fixed_dictionaries(
            {"requiredDuringSchedulingIgnoredDuringExecution": st.lists(pod_terms, max_size=2)}
        ),
        "podAntiAffinity": st.fixed_dictionaries(
            {"requiredDuringSchedulingIgnoredDuringExecution": st.lists(pod_terms, max_size=2)}
        ),
    },
)
tolerations = st.lists(
    st.sampled_from(
        [
            {"operator": "Exists"},
            {"key": START_UP_TAINT, "operator": "Exists"},
            {"key": "a", "value": "b", "effect": "NoExecute"},
        ]
    ),
    max_size=2,
)
spreads = st.lists(
    st.fixed_dictionaries(
        {
            "maxSkew": st.sampled_from([1, 2147483647]),
            "topologyKey": st.sampled_from(KEYS),
            "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": selectors,
        }
    ),
    max_size=2,
)


@st.composite
def pod_specs(draw: st.DrawFn) -> dict[str, Any]:
    requests = draw(st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/thing"]), quantities, max_size=2))
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    container: dict[str, Any] = {"name": "main", "image": "example.com/none"}
    container["resources"] = {"requests": requests, "limits": limits}
    if draw(st.integers(0, 5)) == 0:
        container["ports"] = [{"containerPort": 80, "hostPort": draw(st.sampled_from([80, 65535]))}]
    more = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "affinity": affinities,
                "tolerations": tolerations,
                "topologySpreadConstraints": spreads,
                "nodeSelector": st.dictionaries(st.sampled_from(KEYS), label_values, max_size=1),
                "schedulingGates": st.just([{"name": "example.com/gate"}]),
                "priorityClassName": st.sampled_from([PRIORITY_CLASS, "system-cluster-critical", "absent"]),
                "priority": st.sampled_from([2_000_000_000, -2_147_483_648]),
                "schedulerName": st.sampled_from(["default-scheduler", "another"]),
                "nodeName": st.sampled_from([A_NODE, "absent"]),
                "overhead": st.just({"cpu": "9"}),
            },
        )
    )
    # Most of them without most of it, or the API server would refuse nearly all.
    kept = draw(st.sets(st.sampled_from(sorted(more)), max_size=2)) if more else set()
    return {"containers": [container], "terminationGracePeriodSeconds": 0, **{key: more[key] for key in kept}}


@st.composite
def metadata(draw: st.DrawFn) -> dict[str, Any]:
    found = {
        "name": draw(st.sampled_from("abcdefgh")),
        "labels": draw(of_labels),
        "annotations": draw(of_annotations),
    }
    if draw(st.integers(0, 3)) == 0:
        owner = {"apiVersion": "apps/v1", "uid": "00000000-0000-0000-0000-000000000000", "controller": True}
        kind, name = (
            draw(st.sampled_from(["DaemonSet", "ReplicaSet", "Deployment", "Job"])),
            draw(st.sampled_from(["a", "honest"])),
        )
        found["ownerReferences"] = [{**owner, "kind": kind, "name": name}]
    return found


counts = st.sampled_from([0, 1, 3, 40, 5_000])
"""With two thousand millions kube-controller-manager itself is out of memory."""


@st.composite
def workloads(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """No DaemonSets: their pods have a right to each node's room; and no pods that are bound by hand, which
    kube-controller-manager deletes and makes again without a pause."""
    kind = draw(st.sampled_from(["deployments", "replicasets", "statefulsets", "jobs"]))
    body: dict[str, Any] = {"metadata": draw(metadata())}
    mine = {"of": f"{kind}-{body['metadata']['name']}"}
    template: dict[str, Any] = {
        "metadata": {"labels": {**draw(of_labels), **mine}, "annotations": draw(of_annotations)}
    }
    template["spec"] = {key: value for key, value in draw(pod_specs()).items() if key != "nodeName"}
    if kind == "jobs":
        template["spec"]["restartPolicy"] = "Never"
        body["spec"] = {
            "template": template,
            "parallelism": draw(counts),
            "completions": draw(counts),
            "backoffLimit": 1,
        }
        return f"apis/batch/v1 {kind}", body
    body["spec"] = {"template": template, "selector": {"matchLabels": mine}, "replicas": draw(counts)}
    if kind == "statefulsets":
        body["spec"] |= {"serviceName": "s", "podManagementPolicy": draw(st.sampled_from(["Parallel", "OrderedReady"]))}
    return f"apis/apps/v1 {kind}", body


pods = st.tuples(st.just("api/v1 pods"), st.fixed_dictionaries({"metadata": metadata(), "spec": pod_specs()}))


@st.composite
def templates(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    about = {"labels": draw(of_labels), "annotations": draw(of_annotations)}
    template = {"metadata": about, "spec": draw(pod_specs())}
    return "api/v1 podtemplates", {"metadata": draw(metadata()), "template": template}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Of these templates, or of none."""
    of = st.fixed_dictionaries({"name": st.sampled_from("abcdx")})
    sets = st.fixed_dictionaries({"podTemplateRef": of, "count": st.sampled_from([1, 4, 2_000])})
    parameters = st.sampled_from(["ValidUntilSeconds", "maxRunDurationSeconds", "a"])
    spec = {
        "provisioningClassName": draw(st.sampled_from([ATOMIC, CHECK, "absent"])),
        "podSets": draw(st.lists(sets, min_size=1, max_size=3)),
        "parameters": draw(st.dictionaries(parameters, texts, max_size=2)),
    }
    kind = {"apiVersion": REQUESTS.removeprefix("apis/"), "kind": "ProvisioningRequest"}
    return f"{REQUESTS} provisioningrequests", {**kind, "metadata": draw(metadata()), "spec": spec}


def _pod(name: str, annotations: dict[str, str], labels: dict[str, str], **spec: Any) -> tuple[str, dict[str, Any]]:
    container = {"name": "main", "image": "example.com/none", "resources": {"requests": {"cpu": "100m"}}}
    about = {"name": name, "annotations": annotations, "labels": labels}
    return "api/v1 pods", {"metadata": about, "spec": {"containers": [container], **spec}}


class HostileBatch(list[tuple[str, dict[str, Any]]]):
    """Objects, told no longer than anybody reads."""

    def __repr__(self) -> str:
        return f"{super().__repr__():.5000}"


DEMONSTRATED = HostileBatch(
    [
        _pod("poison", {MIRROR: "9" * 5000}, {}),
        _pod("fake", {"podType": "capacityBufferFakePod"}, {}, nodeName=A_NODE),
        _pod("pause", {SHAPE: "a"}, {PLACEHOLDER: "true"}, nodeName=A_NODE),
        _pod("gang", {MIN_COUNT: "2147483647"}, {DEFAULT_GANG_LABEL: "veto"}),
    ]
)
"""What has kept everybody waiting once."""
_KINDS = ((pods, 3), (workloads(), 3), (templates(), 2), (requests(), 2))
"""At least so many of each in a batch."""
batches = st.tuples(*(st.lists(each, min_size=least, max_size=8) for each, least in _KINDS)).map(
    lambda each: HostileBatch(chain.from_iterable(each))
)


class Tenant:
    """May do anything with these objects in a namespace of its own, within a quota for pods."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.cluster = Cluster(plane, namespace)
        admin, of = plane.admin, self.cluster.path
        hard = {"spec": {"hard": {"count/pods": str(MOST_PODS)}}}
        admin.ensure(of("resourcequotas"), {"metadata": {"name": "pods"}, **hard})
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
        of_groups = {
            "": ["pods", "podtemplates"],
            "apps": ["deployments", "replicasets", "statefulsets"],
            "batch": ["*"],
            REQUESTS.split("/")[1]: ["*"],
        }
        rules = [{"apiGroups": [api], "resources": found, "verbs": ["*"]} for api, found in of_groups.items()]
        admin.ensure(of("roles", api=RBAC), {"metadata": {"name": "tenant"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"}
        binding = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [subject]}
        admin.ensure(of("rolebindings", api=RBAC), binding)
        self._api: Api = plane.api_of_service_account(namespace, "default")
        self.taken = 0
        """Objects that the API server took."""
        self.refused = Counter[int]()
        """The others, by the status that it answered."""

    def create(self, where: str, body: dict[str, Any]) -> None:
        """Create an object, or replace the one of that name."""
        api, resource = where.split()
        path, name = self.cluster.path(resource, api=api), body["metadata"]["name"]
        if body.get("spec", {}).get("nodeName") == A_NODE:
            there = [node["metadata"]["name"] for node in self.cluster.nodes()]
            body = {**body, "spec": {**body["spec"], "nodeName": min(there, default="absent")}}
        try:
            self._api.create(path, body)
            self.taken += 1
        except ApiRefusal as refused:
            self.refused[refused.status] += 1
            if refused.status == 409:
                self._api.delete(f"{path}/{name}", gracePeriodSeconds=0, propagationPolicy="Background")

    def clear(self) -> None:
        """Delete everything that it has created."""
        kinds = ["deployments", "replicasets", "statefulsets"]
        found = [*(("apis/apps/v1", kind) for kind in kinds), ("apis/batch/v1", "jobs"), ("api/v1", "podtemplates")]
        for api, resource in (*found, (REQUESTS, "provisioningrequests"), ("api/v1", "pods")):
            self._api.delete(self.cluster.path(resource, api=api), gracePeriodSeconds=0, propagationPolicy="Background")

    def close(self) -> None:
        self.clear()
        self._api.close()
        self.cluster.admin.delete(f"/api/v1/namespaces/{self.cluster.namespace}")
        self.cluster.admin.delete(self.cluster.path("pods"), gracePeriodSeconds=0)
