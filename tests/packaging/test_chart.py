"""deploy/chart as Helm renders it: which objects come with which values, what is refused, and that the plain manifests
are the same. What an API server makes of it is in tests/controlplane/test_chart.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.config.load import load_settings
from cagrpc.controllers.settings import JournalKind
from tests.support.controlplane.helm import CHART, VALUES, Document, Helm, names, only
from tools import manifests

EXAMPLES = sorted(path.stem for path in VALUES.glob("*.yaml") if path.stem != "plain")
KARPENTER = {"karpenter": {"node_class": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}}
Right = tuple[str, str, str, str]
"""Namespace ("" for everywhere), API group, resource, verb."""


def rights(documents: list[Document]) -> set[Right]:
    """Return what the ServiceAccount of the servers is given."""
    roles = {
        (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace", "")): each for each in documents
    }
    found = set()
    for each in documents:
        if not each["kind"].endswith("RoleBinding"):
            continue
        if not any(subject.get("name") == "cagrpc" for subject in each["subjects"]):
            continue
        namespace = each["metadata"].get("namespace", "")
        role = roles[each["roleRef"]["kind"], each["roleRef"]["name"], namespace]
        for rule in role["rules"]:
            assert "nonResourceURLs" not in rule
            for group in rule["apiGroups"]:
                found |= {(namespace, group, resource, v) for resource in rule["resources"] for v in rule["verbs"]}
    return found


def configuration(documents: list[Document]) -> Any:
    return yaml.safe_load(only(documents, "ConfigMap")["data"]["cagrpc.yaml"])


def test_the_schema_of_the_configuration_is_that_of_the_chart() -> None:
    written = json.loads(manifests.SCHEMA.read_text())
    found = json.loads(manifests.CONFIGURATION_SCHEMA.read_text())
    assert manifests.schema(written, found) == written, "run `make manifests`"


@pytest.mark.parametrize("name", manifests.MANIFESTS)
def test_a_plain_manifest_is_the_chart_with_the_values_that_it_names(helm: Helm, name: str) -> None:
    assert (manifests.DEPLOY / f"{name}.yaml").read_text() == manifests.rendered(helm.program, name), (
        "run `make manifests`"
    )


def test_no_manifest_is_written_by_hand() -> None:
    assert {path.stem for path in manifests.DEPLOY.glob("*.yaml")} == set(manifests.MANIFESTS)


@pytest.mark.parametrize("name", manifests.MANIFESTS)
def test_a_plain_manifest_is_whole(tmp_path: Path, name: str) -> None:
    """As far as that can be seen without Helm: each object has a name and a kind, and a configuration is valid."""
    documents = list(yaml.safe_load_all((manifests.DEPLOY / f"{name}.yaml").read_text()))
    assert len(names(documents)) == len(documents) > 0
    for each in documents:
        if each["kind"] == "ConfigMap" and "cagrpc.yaml" in each["data"]:
            path = tmp_path / "cagrpc.yaml"
            path.write_text(each["data"]["cagrpc.yaml"])
            assert load_settings(path).cluster is not None


@pytest.mark.parametrize("values", ["", *EXAMPLES])
def test_lint_has_nothing_to_say(helm: Helm, values: str) -> None:
    flags = ["--values", VALUES / f"{values}.yaml"] if values else []
    told = helm.run("lint", "--strict", CHART, *flags)
    assert "[WARNING]" not in told
    assert "0 chart(s) failed" in told


@pytest.mark.parametrize("values", ["", *EXAMPLES])
def test_the_configuration_is_one_that_a_server_takes(helm: Helm, tmp_path: Path, values: str) -> None:
    documents = helm.template({}, *([values] if values else []), namespace="elsewhere")
    path = tmp_path / "cagrpc.yaml"
    path.write_text(only(documents, "ConfigMap")["data"]["cagrpc.yaml"])
    settings = load_settings(path)
    assert settings.cluster is not None
    assert (settings.cluster.journal, settings.cluster.namespace) == (JournalKind.CLUSTER, "elsewhere")
    assert settings.cluster.kubeconfig is None
    assert settings.tls is not None
    mounted = {each["mountPath"] for each in container_of(documents)["volumeMounts"]}
    for file in (settings.tls.certificate, settings.tls.key, settings.tls.client_ca):
        assert str(file.parent) in mounted


def container_of(documents: list[Document]) -> Any:
    (found,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    return found


def of_everybody(documents: list[Document]) -> Iterator[Document]:
    """Objects without a namespace, or of another one."""
    for each in documents:
        if each["metadata"].get("namespace") != "elsewhere":
            yield each


def test_another_namespace_is_meant_everywhere(helm: Helm) -> None:
    documents = helm.template({"crds": {"capacityBuffers": True}}, "try-slack", namespace="elsewhere")
    for each in of_everybody(documents):
        kind, namespace = each["kind"], each["metadata"].get("namespace", "")
        assert namespace in ("", "kube-node-lease", "default"), each["metadata"]
        for subject in each.get("subjects", ()):
            assert subject["namespace"] == "elsewhere", each["metadata"]
        if kind == "ValidatingAdmissionPolicy":
            (condition,) = each["spec"]["matchConditions"]
            assert "'system:serviceaccount:elsewhere:cagrpc'" in condition["expression"]
    text = json.dumps(documents)
    assert "cagrpc.cagrpc" not in text
    assert "cagrpc.elsewhere.svc:8087" in text


# ---- rights


def roles(documents: list[Document]) -> set[str]:
    return {name for kind, name in names(documents) if kind in ("ClusterRole", "Role")}


def test_without_any_feature_there_is_the_least(helm: Helm) -> None:
    off = {"http": {"insecure": True}, "provisioning_requests": {"enabled": False}}
    documents = helm.template({"config": off})
    assert roles(documents) == {"cagrpc", "cagrpc-view", "cagrpc-reader"}
    written = {right for right in rights(documents) if right[3] not in ("get", "list", "watch")}
    assert written == {
        ("", "", "pods/status", "patch"),
        ("", "", "nodes", "patch"),
        ("", "events.k8s.io", "events", "create"),
        ("", "events.k8s.io", "events", "patch"),
        *(("", "cagrpc.io", "increments", verb) for verb in ("create", "patch", "delete")),
        *(("", "cagrpc.io", "fleetrecords", verb) for verb in ("create", "update", "delete")),
        *(("cagrpc", "coordination.k8s.io", "leases", verb) for verb in ("create", "update")),
    }
    assert not {right for right in rights(documents) if right[2] in ("secrets", "configmaps", "serviceaccounts")}


FEATURES: dict[str, tuple[dict[str, Any], set[Right], set[str]]] = {
    "pages over HTTPS": (
        {"http": {"insecure": False}},
        {
            ("", "authentication.k8s.io", "tokenreviews", "create"),
            ("", "authorization.k8s.io", "subjectaccessreviews", "create"),
        },
        set(),
    ),
    "provisioning requests": (
        {"provisioning_requests": {"enabled": True}},
        {
            *(("", "autoscaling.x-k8s.io", "provisioningrequests", verb) for verb in ("list", "watch", "delete")),
            ("", "autoscaling.x-k8s.io", "provisioningrequests/status", "patch"),
            *(("", "", "podtemplates", verb) for verb in ("list", "watch")),
            *(("", "cagrpc.io", "provisioningclasses", verb) for verb in ("list", "watch")),
        },
        set(),
    ),
    "simulated nodes": (
        {"kubernetes": {"simulated_nodes": True}},
        {
            *(("", "", "nodes", verb) for verb in ("create", "delete")),
            ("", "", "nodes/status", "patch"),
            ("", "", "pods", "delete"),
            *(("kube-node-lease", "coordination.k8s.io", "leases", verb) for verb in ("create", "patch", "delete")),
        },
        {"cagrpc-simulated-nodes", "cagrpc-simulation"},
    ),
    "dedicated nodes": (
        {"planner": {"dedicated_nodes": True}},
        {("", "", "pods", "patch")},
        {"cagrpc-dedicated-nodes"},
    ),
    "consolidation": (
        {"consolidation": {"mode": "on"}},
        {("", "", "pods/eviction", "create")},
        {"cagrpc-consolidation"},
    ),
    "consolidation as YAML reads it": (
        {"consolidation": {"mode": True}},
        {("", "", "pods/eviction", "create")},
        {"cagrpc-consolidation"},
    ),
    "consolidation as a dry run": ({"consolidation": {}}, set(), set()),
    "Kueue": (
        {"kueue": {"enabled": True}},
        {
            *(
                ("", "kueue.x-k8s.io", resource, verb)
                for resource in ("workloads", "admissionchecks", "provisioningrequestconfigs", "resourceflavors")
                for verb in ("list", "watch")
            ),
            *(("", "kueue.x-k8s.io", f"{resource}/status", "patch") for resource in ("workloads", "admissionchecks")),
            *(
                ("", group, resource, verb)
                for group, resource in (("autoscaling.x-k8s.io", "provisioningrequests"), ("", "podtemplates"))
                for verb in ("get", "list", "watch", "create", "delete")
            ),
        },
        {"cagrpc-kueue"},
    ),
    "Karpenter": (
        {"backend": KARPENTER},
        {
            *(("", "karpenter.sh", "nodeclaims", verb) for verb in ("get", "list", "watch", "create", "delete")),
            *(("", "karpenter.sh", "nodepools", verb) for verb in ("list", "watch")),
            *(
                ("", group, resource, "get")
                for group in ("karpenter.k8s.aws", "karpenter.azure.com")
                for resource in ("ec2nodeclasses", "aksnodeclasses")
            ),
            *(("default", "", "events", verb) for verb in ("list", "watch")),
        },
        {"cagrpc-karpenter"},
    ),
    "slack": (
        {"slack": {}},
        {
            *(("cagrpc", "cagrpc.io", "slacks", verb) for verb in ("get", "create")),
            ("cagrpc", "cagrpc.io", "slacks/status", "patch"),
            ("", "scheduling.k8s.io", "priorityclasses", "get"),
            *(("cagrpc", "", "podtemplates", verb) for verb in ("list", "create", "delete")),
            *(
                ("cagrpc", "autoscaling.x-k8s.io", "capacitybuffers", verb)
                for verb in ("list", "create", "patch", "delete")
            ),
            ("cagrpc", "autoscaling.x-k8s.io", "capacitybuffers/status", "patch"),
            *(("cagrpc", "apps", "replicasets", verb) for verb in ("list", "create", "patch", "delete")),
        },
        {"cagrpc-slack"},
    ),
}
OFF: dict[str, Any] = {"http": {"insecure": True}, "provisioning_requests": {"enabled": False}}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_brings_its_rights_and_no_others(helm: Helm, feature: str) -> None:
    section, brings, of_roles = FEATURES[feature]
    before, after = helm.template({"config": OFF}), helm.template({"config": {**OFF, **section}})
    assert rights(after) - rights(before) == brings - rights(before)
    assert rights(before) <= rights(after)
    assert roles(after) - roles(before) == of_roles


def test_machines_of_cluster_api_are_a_right_in_the_namespace_of_the_cluster(helm: Helm) -> None:
    before = rights(helm.template({}))
    backend = {"cluster_api": {"cluster": "prod", "namespace": "clusters"}}
    brought = rights(helm.template({"config": {"backend": backend}})) - before
    assert {right[0] for right in brought} == {"clusters"}
    assert ("clusters", "cluster.x-k8s.io", "machines", "create") in brought
    assert not {right for right in brought if right[2] == "secrets"}
    backend["cluster_api"]["kubeconfig"] = "/etc/management/kubeconfig"
    assert rights(helm.template({"config": {"backend": backend}})) == before


def test_rights_can_be_left_to_somebody_else(helm: Helm) -> None:
    documents = helm.template({"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "theirs"}})
    assert not {kind for kind, _ in names(documents) if "Role" in kind or kind == "ServiceAccount"}
    assert only(documents, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"


def test_readers_are_bound(helm: Helm) -> None:
    reader = {"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}
    documents = helm.template({"readers": [reader]})
    binding = only(documents, "ClusterRoleBinding", "cagrpc-reader")
    assert binding["subjects"] == [reader]
    assert binding["roleRef"]["name"] == "cagrpc-reader"
    assert ("ClusterRoleBinding", "cagrpc-reader") not in names(helm.template({}))


# ---- what runs


def test_the_servers_of_a_cloud_are_spread_and_have_a_budget(helm: Helm) -> None:
    documents = helm.template({}, "karpenter")
    deployment = only(documents, "Deployment")["spec"]
    spec = deployment["template"]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"] == {"type": "Recreate"}
    keys = {each["topologyKey"]: each for each in spec["topologySpreadConstraints"]}
    assert keys["kubernetes.io/hostname"]["whenUnsatisfiable"] == "DoNotSchedule"
    assert keys["topology.kubernetes.io/zone"]["whenUnsatisfiable"] == "ScheduleAnyway"
    labels = deployment["template"]["metadata"]["labels"]
    for each in keys.values():
        assert each["labelSelector"]["matchLabels"].items() <= labels.items()
    assert "podAffinity" not in spec["affinity"]
    budget = only(documents, "PodDisruptionBudget")["spec"]
    assert (budget["minAvailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert "PersistentVolumeClaim" not in {kind for kind, _ in names(documents)}
    assert {each["name"] for each in spec["volumes"]} == {"configuration", "tls", "state", "tmp"}


def test_those_of_a_simulated_cloud_are_beside_its_volume(helm: Helm) -> None:
    documents = helm.template({}, "simulated")
    spec = only(documents, "Deployment")["spec"]["template"]["spec"]
    assert "topologySpreadConstraints" not in spec
    assert spec["affinity"]["podAffinity"]
    assert "PodDisruptionBudget" not in {kind for kind, _ in names(documents)}
    claim = only(documents, "PersistentVolumeClaim", "cagrpc-cloud")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    file = configuration(documents)["backend"]["file"]
    (mounted,) = [each for each in container_of(documents)["volumeMounts"] if file.startswith(f"{each['mountPath']}/")]
    assert mounted["name"] == "cloud"


def test_a_changed_configuration_is_a_changed_pod(helm: Helm) -> None:
    def annotation(section: dict[str, Any]) -> str:
        template = only(helm.template({"config": section}), "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/configuration"])

    assert annotation({}) == annotation({"drive": "assist"})
    assert annotation({}) != annotation({"drive": "plan"})


def test_probes_speak_what_the_http_side_does(helm: Helm) -> None:
    for insecure, scheme in ((False, "HTTPS"), (True, "HTTP")):
        values = {"config": {"http": {"insecure": insecure}}, "monitoring": {"serviceMonitor": {"enabled": True}}}
        documents = helm.template(values)
        container = container_of(documents)
        probes = [container[f"{each}Probe"]["httpGet"]["scheme"] for each in ("startup", "readiness", "liveness")]
        assert probes == [scheme] * 3
        (endpoint,) = only(documents, "ServiceMonitor")["spec"]["endpoints"]
        assert endpoint["scheme"] == scheme.lower()
        assert ("bearerTokenFile" in endpoint) is ("tlsConfig" in endpoint) is not insecure


def test_another_authority_of_clients_is_mounted(helm: Helm) -> None:
    documents = helm.template({"tls": {"clientCaSecretName": "autoscalers"}})
    assert configuration(documents)["tls"]["client_ca"] == "/etc/cagrpc-client-ca/ca.crt"
    (volume,) = [
        each
        for each in only(documents, "Deployment")["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "client-ca"
    ]
    assert volume["secret"]["secretName"] == "autoscalers"


def test_an_image_is_named_by_tag_and_digest(helm: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert container_of(helm.template({}))["image"] == f"cagrpc:{version}"
    image = {"repository": "registry.example/cagrpc", "tag": "9.9.9", "digest": f"sha256:{'0' * 64}"}
    assert container_of(helm.template({"image": image}))["image"] == f"registry.example/cagrpc:9.9.9@sha256:{'0' * 64}"


def test_what_is_added_reaches_the_pod(helm: Helm) -> None:
    volume = {"name": "catalogue", "configMap": {"name": "catalogue"}}
    mount = {"name": "catalogue", "mountPath": "/etc/catalogue"}
    documents = helm.template(
        {
            "extraVolumes": [volume],
            "extraVolumeMounts": [mount],
            "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
            "extraArgs": ["--log-level", "debug"],
            "config": {"catalogue": "/etc/catalogue/prices.csv"},
        }
    )
    container = container_of(documents)
    assert mount in container["volumeMounts"]
    assert container["args"] == ["--config", "/etc/cagrpc/cagrpc.yaml", "--log-level", "debug"]
    assert {"name": "AWS_REGION", "value": "eu-central-1"} in container["env"]
    assert volume in only(documents, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert configuration(documents)["catalogue"] == "/etc/catalogue/prices.csv"


# ---- what is optional


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"networkPolicy": {"enabled": False}}, {"NetworkPolicy"}),
        ({"policies": {"enabled": False}}, {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}),
        ({"flowSchemas": {"enabled": False}}, {"FlowSchema"}),
        ({"podDisruptionBudget": {"enabled": False}}, {"PodDisruptionBudget"}),
        ({"crds": {"enabled": False}}, {"CustomResourceDefinition"}),
    ],
)
def test_what_is_switched_off_is_gone_and_nothing_else(helm: Helm, values: dict[str, Any], gone: set[str]) -> None:
    before, after = names(helm.template({}, "karpenter")), names(helm.template(values, "karpenter"))
    assert gone <= {kind for kind, _ in before}
    assert {each for each in before if each[0] not in gone} == after


def test_of_other_projects_kinds_nothing_is_made_unasked(helm: Helm) -> None:
    for document in helm.template({}, "karpenter"):
        group = document["apiVersion"].rpartition("/")[0]
        assert "." not in group or group.endswith(".k8s.io"), document["apiVersion"]
    definitions = {name for kind, name in names(helm.template({}, "slack")) if kind == "CustomResourceDefinition"}
    assert definitions == {
        f"{each}.cagrpc.io" for each in ("increments", "fleetrecords", "provisioningclasses", "slacks")
    }


def test_definitions_are_kept_unless_that_is_not_wanted(helm: Helm) -> None:
    for keep in (True, False):
        found = [
            each["metadata"].get("annotations", {})
            for each in helm.template({"crds": {"keep": keep}}, "slack")
            if each["kind"] in ("CustomResourceDefinition", "PersistentVolumeClaim")
        ]
        assert len(found) == 5
        assert all((each == {"helm.sh/resource-policy": "keep"}) is keep for each in found)


def test_certificates_of_an_authority_of_its_own(helm: Helm) -> None:
    documents = helm.template({}, "cert-manager")
    server = only(documents, "Certificate", "cagrpc-tls")["spec"]
    assert server["secretName"] == "cagrpc-tls"
    assert server["dnsNames"][0] == "cagrpc.cagrpc.svc"
    assert "server auth" in server["usages"]
    client = only(documents, "Certificate", "cluster-autoscaler-tls")["spec"]
    assert (client["commonName"], "client auth" in client["usages"]) == ("cluster-autoscaler", True)
    authority = only(documents, "Certificate", "cagrpc-ca")["spec"]
    assert authority["isCA"]
    issuer = only(documents, "Issuer", server["issuerRef"]["name"])
    assert issuer["spec"]["ca"]["secretName"] == authority["secretName"]
    assert client["issuerRef"] == server["issuerRef"]


def test_certificates_of_another_authority(helm: Helm) -> None:
    issuer = {"kind": "ClusterIssuer", "name": "company"}
    values = {"enabled": True, "issuerRef": issuer, "clientSecretName": "", "dnsNames": ["cagrpc.example.com"]}
    documents = [each for each in helm.template({"certManager": values}) if "cert-manager" in each["apiVersion"]]
    (found,) = documents
    assert found["spec"]["issuerRef"] == issuer
    assert "cagrpc.example.com" in found["spec"]["dnsNames"]


def test_prometheus_is_told_where_who_and_what(helm: Helm) -> None:
    documents = helm.template({}, "monitoring")
    monitor = only(documents, "ServiceMonitor")["spec"]
    service = only(documents, "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["tlsConfig"] == {
        "serverName": "cagrpc.cagrpc.svc",
        "ca": {"secret": {"name": "cagrpc-tls", "key": "ca.crt"}},
    }
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    assert only(documents, "PrometheusRule")["spec"] == rules
    dashboard = only(documents, "ConfigMap", "cagrpc-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    shown = json.loads(dashboard["data"]["cagrpc.json"])
    assert shown == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_prometheus_may_show_a_token_of_a_secret(helm: Helm) -> None:
    authorization = {"type": "Bearer", "credentials": {"name": "reader", "key": "token"}}
    values = {"monitoring": {"serviceMonitor": {"enabled": True, "authorization": authorization}}}
    (endpoint,) = only(helm.template(values), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == authorization
    assert "bearerTokenFile" not in endpoint


def test_the_network_policy_lets_in_who_is_named(helm: Helm) -> None:
    peer = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    values = {"networkPolicy": {"autoscaler": [peer], "readers": [], "egressPorts": [443], "egressTo": [peer]}}
    spec = only(helm.template(values), "NetworkPolicy")["spec"]
    assert spec["ingress"] == [{"ports": [{"port": "provider"}, {"port": "expander"}], "from": [peer]}]
    assert spec["egress"][0] == {"ports": [{"port": 443}], "to": [peer]}
    ports = {port["name"] for port in container_of(helm.template({}))["ports"]}
    assert ports == {"provider", "expander", "http"}


def test_the_autoscaler_beside_it_asks_it(helm: Helm) -> None:
    documents = helm.template({"clusterAutoscaler": {"enabled": True, "extraArgs": ["--v=4"]}})
    (container,) = only(documents, "Deployment", "cluster-autoscaler")["spec"]["template"]["spec"]["containers"]
    for flag in ("--expander=grpc", "--grpc-expander-url=cagrpc.cagrpc.svc:8087", "--v=4"):
        assert flag in container["args"]
    (from_,) = only(documents, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    labels = only(documents, "Deployment", "cluster-autoscaler")["spec"]["template"]["metadata"]["labels"]
    assert from_["podSelector"]["matchLabels"].items() <= labels.items()


def test_the_autoscaler_beside_it_is_told_of_startup_taints(helm: Helm) -> None:
    known = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/known", "effect": "NoSchedule"}
    agent = {"key": "example.com/agent", "effect": "NoExecute"}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "pool"}}
    pool["spec"] = {"template": {"spec": {"startupTaints": [{"key": "booting", "effect": "NoSchedule"}, agent]}}}
    provisioners = [{"name": "a", "startup_taints": [agent, known]}, pool]
    documents = helm.template({"clusterAutoscaler": {"enabled": True}, "config": {"provisioners": provisioners}})
    (container,) = only(documents, "Deployment", "cluster-autoscaler")["spec"]["template"]["spec"]["containers"]
    told = [each for each in container["args"] if each.startswith("--startup-taint")]
    assert told == ["--startup-taint=booting", "--startup-taint=example.com/agent"]


def test_the_wrapper_has_the_clouds_rights_and_none_in_the_cluster(helm: Helm) -> None:
    documents = helm.template({"certManager": {"enabled": True}}, "externalgrpc")
    account = only(documents, "ServiceAccount", "cagrpc-externalgrpc")
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["annotations"] == {
        "eks.amazonaws.com/role-arn": "arn:aws:iam::000000000000:role/cluster-autoscaler"
    }
    assert "annotations" not in only(documents, "ServiceAccount", "cagrpc")["metadata"]
    bound = [each for each in documents if each["kind"].endswith("RoleBinding")]
    assert not any(subject["name"] == "cagrpc-externalgrpc" for each in bound for subject in each["subjects"])
    policy = only(documents, "NetworkPolicy", "cagrpc-externalgrpc")["spec"]
    (rule,) = policy["ingress"]
    servers = only(documents, "Deployment", "cagrpc")["spec"]["template"]["metadata"]["labels"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= servers.items()
    pod = only(documents, "Deployment", "cagrpc-externalgrpc")["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert container["args"][0] == "--address=:8086"
    assert container["args"][-1] == "--nodes=0:50:spot-m7i"
    for name in ("cagrpc-externalgrpc-tls", "cagrpc-externalgrpc-client-tls"):
        only(documents, "Certificate", name)


def test_cagrpc_reaches_the_wrapper_with_the_certificate_that_is_mounted(helm: Helm) -> None:
    documents = helm.template({}, "externalgrpc")
    backend = configuration(documents)["backend"]["externalgrpc"]
    assert backend["address"] == f"{only(documents, 'Service', 'cagrpc-externalgrpc')['metadata']['name']}:8086"
    deployment = only(documents, "Deployment", "cagrpc")["spec"]["template"]["spec"]
    mounts = {each["mountPath"]: each["name"] for each in deployment["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in deployment["volumes"]}
    directories = {path.rpartition("/")[0] for path in backend["tls"].values()}
    assert {volumes[mounts[each]] for each in directories} == {"cagrpc-externalgrpc-client-tls"}
    egress = only(documents, "NetworkPolicy", "cagrpc")["spec"]["egress"]
    assert {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "cagrpc-externalgrpc"}}} in [
        peer for each in egress for peer in each.get("to", ())
    ]
    none = helm.template({})
    assert not [each for each in none if each["metadata"]["name"].startswith("cagrpc-externalgrpc")]


def test_the_wrapper_of_a_provider_that_keeps_machines_in_the_cluster_may_reach_them(helm: Helm) -> None:
    rule = {"apiGroups": ["cluster.x-k8s.io"], "resources": ["machines"], "verbs": ["get", "list", "watch"]}
    documents = helm.template({"externalgrpc": {"wrapper": {"rules": [rule]}}}, "externalgrpc")
    assert only(documents, "ServiceAccount", "cagrpc-externalgrpc")["automountServiceAccountToken"] is True
    assert only(documents, "ClusterRole", "cagrpc-externalgrpc")["rules"] == [rule]
    binding = only(documents, "ClusterRoleBinding", "cagrpc-externalgrpc")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "cagrpc-externalgrpc", "namespace": "cagrpc"}]


def test_a_wrapper_that_nobody_would_ask_is_refused(helm: Helm) -> None:
    done = helm.ask("template", "cagrpc", CHART, values={"externalgrpc": {"wrapper": {"enabled": True}}})
    assert done.returncode != 0
    assert "takes config.backend.externalgrpc with the address cagrpc-externalgrpc:8086" in done.stderr


def test_several_providers_are_no_simulated_backend(helm: Helm) -> None:
    several = [{"address": f"localhost:{port}", "name": str(port)} for port in (9001, 9002)]
    documents = helm.template({"config": {"backend": {"externalgrpc": several}, "provisioners": [{"name": "a"}]}})
    assert configuration(documents)["backend"] == {"externalgrpc": several}
    assert not [each for each in documents if each["kind"] == "PersistentVolumeClaim"]


# ---- what is refused


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replica": 2}, "additional properties 'replica' not allowed"),
    ({"replicas": "two"}, "at '/replicas': got string, want integer"),
    ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    ({"image": {"digest": "latest"}}, "at '/image/digest'"),
    ({"tls": {"secretName": ""}}, "at '/tls/secretName'"),
    ({"readers": [{"kind": "ServiceAccount", "name": "prometheus"}]}, "missing property 'namespace'"),
    ({"networkPolicy": {"egressPorts": [0]}}, "at '/networkPolicy/egressPorts/0'"),
    ({"certManager": {"issuerRef": {"kind": "Issuer"}}}, "missing property 'name'"),
    ({"podDisruptionBudget": {"enabled": "yes"}}, "got string, want boolean"),
    ({"config": {"drive": "fly"}}, "at '/config/drive': value must be one of 'assist', 'plan'"),
    ({"config": {"drvie": "plan"}}, "at '/config': additional properties 'drvie' not allowed"),
    ({"config": {"provisioners": []}}, "at '/config/provisioners': minItems: got 0, want 1"),
    ({"config": {"listen": {"http": "0.0.0.0:80"}}}, "additional properties 'listen' not allowed"),
    ({"config": {"kubernetes": {"namespace": "x"}}}, "additional properties 'namespace' not allowed"),
    ({"config": {"tls": {"insecure": True}}}, "additional properties 'insecure' not allowed"),
]


@pytest.mark.parametrize(("values", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_wrong_values_are_refused_by_their_place(helm: Helm, values: dict[str, Any], told: str) -> None:
    done = helm.ask("template", "cagrpc", CHART, values=values)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert told in done.stderr


def test_all_that_is_wrong_is_told_at_once(helm: Helm) -> None:
    done = helm.ask("template", "cagrpc", CHART, values={"replicas": 0, "config": {"drive": "fly"}})
    assert "at '/replicas'" in done.stderr
    assert "at '/config/drive'" in done.stderr
