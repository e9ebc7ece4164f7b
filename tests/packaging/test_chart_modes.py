"""deploy/chart with the modes `expander` and `shadow`: a configuration without a provider, the rights that such a
server needs and no others, and nothing that is of a provider."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.config.check import check_files
from cagrpc.config.load import load_settings
from cagrpc.config.settings import Settings
from cagrpc.controllers.episodes.controller import CONFIG_MAP as EPISODES
from cagrpc.controllers.episodes.controller import EpisodeController
from cagrpc.controllers.kept import InConfigMap
from cagrpc.controllers.settings import AutoscalerConfigMapSettings, ExpanderMode
from cagrpc.kube.informer.informers import Informer
from cagrpc.runtime.clock import SteadyClock
from cagrpc.server.cluster import ClusterConnection
from cagrpc.server.leader import Leader
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.grpc.failed_scale_ups import CONFIG_MAP, KEY, KeptFailures
from cagrpc.services.http.access import ACCESS_REVIEWS, TOKEN_REVIEWS
from tests.packaging.test_chart import KARPENTER, container_of, rights, roles
from tests.support.api_server import ApiServer
from tests.support.commands import ROOT, blocks, commands, words
from tests.support.controlplane.helm import CHART, Document, Helm, names, only

GUIDE = ROOT / "docs" / "guides" / "three-steps.md"
MODES = ("expander", "shadow")
OWN_CONFIG_MAPS = "/api/v1/namespaces/cagrpc/configmaps"
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch"}
OF_A_PROVIDER: tuple[dict[str, Any], ...] = (
    {"config": {"drive": "plan"}},
    {"config": {"slack": {}}},
    {"config": {"consolidation": {"mode": "dry-run"}}},
    {"config": {"limits": {"nodes": 3}}},
    {"config": {"backend": KARPENTER}},
    {"clusterAutoscaler": {"enabled": True}},
    {"externalgrpc": {"wrapper": {"enabled": True}}},
)


def settings_of(documents: list[Document], directory: Path) -> Settings:
    path = directory / "cagrpc.yaml"
    path.write_text(only(documents, "ConfigMap")["data"]["cagrpc.yaml"])
    return load_settings(path)


@pytest.mark.parametrize("mode", MODES)
def test_the_configuration_is_that_of_the_expander_alone(helm: Helm, tmp_path: Path, mode: str) -> None:
    for documents in (helm.template({}, mode), helm.template({"mode": mode})):
        settings = settings_of(documents, tmp_path)
        assert settings.provider is None
        assert settings.answers.mode is (ExpanderMode.SHADOW if mode == "shadow" else ExpanderMode.DECIDE)
        assert settings.config_maps == AutoscalerConfigMapSettings()
        assert not settings.provisioners  # one that takes all groups in would hide the autoscaler's own priorities
    (checked,) = check_files([tmp_path / "cagrpc.yaml"])
    assert checked.summary == "an expander alone"
    assert all(each.startswith("tls.") for each in checked.warnings)  # of files that only the pod has


def test_weights_and_prices_are_as_written(helm: Helm, tmp_path: Path) -> None:
    config = {
        "provisioners": [{"name": "spot", "weight": 50, "groups": ["eks-spot-.*"]}],
        "expander": {"price_rule": {"spot_factor": 0.5}, "config_maps": {"namespace": "ca"}},
    }
    settings = settings_of(helm.template({"mode": "shadow", "config": config}), tmp_path)
    assert [each.name for each in settings.provisioners] == ["spot"]
    assert settings.price_rule.spot_factor == 0.5
    assert settings.config_maps == AutoscalerConfigMapSettings(namespace="ca")
    assert settings.answers.mode is ExpanderMode.SHADOW


# ---- rights


NamedRight = tuple[str, str, str, str, str]
"""Namespace ("" for everywhere), API group, resource, verb, name ("" for any)."""


def named_rights(documents: list[Document]) -> set[NamedRight]:
    """Return the rights of the ServiceAccount of the servers, by name."""
    kept: set[NamedRight] = set()
    for each in documents:
        if each["kind"] not in ("Role", "ClusterRole") or each["metadata"]["name"] == "cagrpc-reader":
            continue
        namespace = each["metadata"].get("namespace", "")
        for rule in each["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    named = rule.get("resourceNames", [""])
                    kept |= {(namespace, group, resource, verb, name) for verb in rule["verbs"] for name in named}
    assert {right[:4] for right in kept} == rights(documents)  # all of them are bound
    return kept


def right_of(path: str, verb: str, name: str = "") -> NamedRight:
    """Return what a request of a collection, or of an object of it, takes."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return namespace, group, rest[0], verb, rest[1] if len(rest) > 1 else name


def requests_of(settings: Settings) -> Iterable[NamedRight]:
    """Yield what a server with these settings asks of the API server."""
    assert settings.cluster is not None
    store = ApiServer(OWN_CONFIG_MAPS)
    cluster = ClusterConnection(settings.cluster, settings, store.client())
    assert cluster.election is None
    leader = Leader(settings, None, DecisionLog(SteadyClock()), cluster)
    try:
        controllers = [cluster.view, *leader.controllers]
        for informer in (each for controller in controllers for each in controller.informers()):
            assert isinstance(informer, Informer)
            resource = informer.resource
            field, _, name = resource.query.get("fieldSelector", "").partition("=")
            assert field in ("", "metadata.name", "reason")
            name = "" if field == "reason" else name  # which is no part of a right
            for verb in ("list", "watch"):
                yield right_of(resource.path, verb, name)
        assert any(isinstance(each, KeptFailures) for each in leader.controllers)
        in_shadow = any(isinstance(each, EpisodeController) for each in leader.controllers)
    finally:
        leader.close()
    assert in_shadow is (settings.answers.mode is ExpanderMode.SHADOW)
    for name in (CONFIG_MAP, *((EPISODES,) if in_shadow else ())):
        kept = InConfigMap(cluster.client, settings.cluster.namespace, name, KEY)
        for text in (kept.read(), "first", "then"):
            kept.write(text)
    for each in store.requests:
        method, _, path = each.partition(" ")
        yield right_of(path, VERBS[method])
    for path in (TOKEN_REVIEWS, ACCESS_REVIEWS):
        yield right_of(path, "create")


@pytest.mark.parametrize("mode", MODES)
def test_the_rights_are_those_that_the_server_makes_use_of(helm: Helm, tmp_path: Path, mode: str) -> None:
    documents = helm.template({}, mode)
    assert named_rights(documents) == set(requests_of(settings_of(documents, tmp_path)))
    assert roles(documents) == {"cagrpc", "cagrpc-reader", "cagrpc-expander", "cagrpc-autoscaler"}


def test_it_writes_one_config_map_and_asks_who_readers_are(helm: Helm) -> None:
    written = {each for each in named_rights(helm.template({}, "expander")) if each[3] not in ("get", "list", "watch")}
    assert written == {
        ("cagrpc", "", "configmaps", "create", ""),
        ("cagrpc", "", "configmaps", "patch", "cagrpc-failed-scale-ups"),
        ("", "authentication.k8s.io", "tokenreviews", "create", ""),
        ("", "authorization.k8s.io", "subjectaccessreviews", "create", ""),
    }


def test_the_rights_are_where_the_autoscaler_is(helm: Helm, tmp_path: Path) -> None:
    maps = {"namespace": "ca", "status_config_map": "status", "priority_config_map": "priorities"}
    documents = helm.template({"mode": "expander", "config": {"expander": {"config_maps": maps}}})
    assert named_rights(documents) == set(requests_of(settings_of(documents, tmp_path)))
    (peer,) = only(documents, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert peer == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ca"}}}


def test_its_config_maps_need_not_be_read(helm: Helm, tmp_path: Path) -> None:
    documents = helm.template({"mode": "expander", "config": {"expander": {"config_maps": None}}})
    settings = settings_of(documents, tmp_path)
    assert settings.config_maps is None
    assert named_rights(documents) == set(requests_of(settings))
    assert not [each for each in documents if each["metadata"].get("namespace") == "kube-system"]


# ---- what runs


@pytest.mark.parametrize("mode", MODES)
def test_there_is_nothing_of_a_provider(helm: Helm, mode: str) -> None:
    documents = helm.template({"certManager": {"enabled": True}}, mode)
    kinds = {kind for kind, _ in names(documents)}
    assert not kinds & {"CustomResourceDefinition", "PersistentVolumeClaim", "PriorityClass"}
    assert not {kind for kind in kinds if kind.startswith("ValidatingAdmissionPolicy")}
    assert {name for kind, name in names(documents) if kind == "FlowSchema"} == {"cagrpc"}
    assert {name for kind, name in names(documents) if kind == "Certificate"} == {"cagrpc-ca", "cagrpc-tls"}
    text = json.dumps([each for each in documents if each["kind"] != "ConfigMap"])
    assert not [word for word in ("8086", '"provider"', "NODE_NAME", "leases") if word in text]
    for ports in (only(documents, "Service")["spec"]["ports"], container_of(documents)["ports"]):
        assert [each["name"] for each in ports] == ["expander", "http"]


def test_all_servers_answer_and_one_is_enough_to_watch(helm: Helm) -> None:
    documents = helm.template({}, "expander")
    deployment = only(documents, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert "podAffinity" not in deployment["template"]["spec"]["affinity"]
    assert deployment["template"]["spec"]["topologySpreadConstraints"]
    assert only(documents, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    watching = helm.template({}, "shadow")
    assert only(watching, "Deployment")["spec"]["replicas"] == 1
    assert "PodDisruptionBudget" not in {kind for kind, _ in names(watching)}  # it would hold up drains for ever


def test_the_autoscaler_is_in_another_namespace(helm: Helm) -> None:
    own: dict[str, Any] = {"podSelector": {}}
    kube_system: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    written: dict[str, Any] = {"networkPolicy": {"autoscaler": [own]}}
    for values, peer in (({}, kube_system), (written, own)):
        (first, _) = only(helm.template(values, "expander"), "NetworkPolicy")["spec"]["ingress"]
        assert first == {"ports": [{"port": "expander"}], "from": [peer]}


def _notes(helm: Helm, mode: str) -> str:
    told = helm.run("install", "cagrpc", CHART, "--namespace", "cagrpc", "--dry-run=client", values={"mode": mode})
    return told.partition("\nNOTES:\n")[2]


@pytest.mark.parametrize(("mode", "others"), [("expander", "least-waste"), ("shadow", "EXPANDERS_OF_TODAY")])
def test_the_notes_have_the_flags(helm: Helm, mode: str, others: str) -> None:
    notes = _notes(helm, mode)
    assert f"  --expander=grpc,{others}\n  --grpc-expander-url=cagrpc.cagrpc.svc:8087\n" in notes
    assert "--cloud-provider" not in notes
    assert ("records what it would have chosen" in notes) is (mode == "shadow")


@pytest.mark.parametrize(("image", "told"), [({}, True), ({"repository": "registry.example/cagrpc"}, False)])
def test_the_notes_say_how_an_image_comes_about_until_one_is_named(
    helm: Helm, image: dict[str, str], told: bool
) -> None:
    values = {"image": image}
    out = helm.run("install", "cagrpc", CHART, "--namespace", "cagrpc", "--dry-run=client", values=values)
    assert ("docker build -t REGISTRY/cagrpc:" in out.partition("\nNOTES:\n")[2]) is told


# ---- the guide


def test_each_step_of_the_guide_installs_what_it_says(helm: Helm, tmp_path: Path) -> None:
    text = GUIDE.read_text()
    (values,) = blocks(text, "yaml")
    (tmp_path / "values.yaml").write_text("\n".join(values))
    found = []
    for command in (words(each) for each in commands(text) if each.startswith("helm ")):
        arguments = [str(tmp_path / each) if each == "values.yaml" else each for each in command[2:]]
        documents = list(yaml.safe_load_all(helm.run("template", *arguments)))
        settings = settings_of(documents, tmp_path)
        assert only(documents, "Certificate", "cagrpc-tls")
        found.append((settings.provider is None, settings.answers.mode, [each.name for each in settings.provisioners]))
    assert found == [
        (True, ExpanderMode.SHADOW, []),
        (True, ExpanderMode.DECIDE, ["spot", "gpu"]),
        (False, ExpanderMode.DECIDE, ["general"]),
    ]


def test_the_flags_of_the_guide_are_those_of_the_notes(helm: Helm) -> None:
    written = [lines for lines in blocks(GUIDE.read_text(), "console") if lines[0].startswith("--")]
    for lines, mode in zip(written, ("expander", "provider"), strict=True):
        flags = [line.partition(" ")[0] for line in lines]
        notes = _notes(helm, mode)
        for flag in flags:
            name, _, value = flag.partition("=")
            told = flag if value.startswith(("grpc", "cagrpc.", "ext", "false")) else name
            assert f"  {told}" in notes, flag


# ---- what is refused


@pytest.mark.parametrize("values", OF_A_PROVIDER, ids=json.dumps)
def test_what_is_of_nodes_of_its_own_is_refused(helm: Helm, values: dict[str, Any]) -> None:
    done = helm.ask("template", "cagrpc", CHART, values={"mode": "shadow", **values})
    assert done.returncode != 0
    ((section, written),) = values.items()
    (name,) = written
    told = "config.drive: plan" if name == "drive" else f"{section}.{name}"
    assert f"mode: shadow has no nodes of its own, and found {told}: leave out what is of nodes" in done.stderr


def test_what_follows_from_the_mode_is_no_value(helm: Helm) -> None:
    values = {"mode": "watch", "config": {"provider": {"enabled": False}}}
    done = helm.ask("template", "cagrpc", CHART, values=values)
    assert "at '/mode': value must be one of 'provider', 'expander', 'shadow'" in done.stderr
    assert "at '/config': additional properties 'provider' not allowed" in done.stderr


def test_a_provider_that_ranks_groups_of_others_has_the_rights_too(helm: Helm) -> None:
    provisioners = [
        {"name": "spot", "groups": ["eks-spot"], "node_groups": [{"id": "m7i.large", "instance_type": "m7i.large"}]}
    ]
    before = rights(helm.template({}))
    by_groups = rights(helm.template({"config": {"provisioners": provisioners}})) - before
    assert by_groups == {("cagrpc", "", "configmaps", verb) for verb in ("get", "create", "patch")}
    by_maps = rights(helm.template({"config": {"expander": {"config_maps": {}}}})) - before
    assert by_maps == by_groups | {("kube-system", "", "configmaps", verb) for verb in ("list", "watch")}
