"""A server without a provider: the expander of a cluster-autoscaler that has another cloud provider."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from cagrpc.api.gen import expander_pb2
from cagrpc.config.load import load_settings
from cagrpc.config.schema.listen import Address
from cagrpc.config.settings import Settings
from cagrpc.controllers.settings import AnswerRules, ClusterSettings, ExpanderMode
from cagrpc.server.process import announce
from cagrpc.server.server import Server
from tests.services.grpc.test_template_groups import LARGE, M7
from tests.services.grpc.test_template_groups import ask as request_about
from tests.support.grpc_servers import GrpcClient
from tests.support.serving import ask, kubeconfig_of


def settings_of(directory: Path) -> Settings:
    path = directory / "cagrpc.yaml"
    path.write_text("provider: {enabled: false}\nprovisioners: [{name: large, weight: 7, groups: [eks-large]}]\n")
    free = Address("127.0.0.1", 0)
    return replace(load_settings(path), expander=free, http=free, tls=None, state_directory=directory / "state")


def chosen(server: Server) -> list[str]:
    with grpc.insecure_channel(server.endpoints.expander) as channel:
        request = request_about({"eks-large": LARGE, "eks-small": M7})
        answer: expander_pb2.BestOptionsResponse = GrpcClient(channel).ok("BestOptions", request)
    return [each.nodeGroupId for each in answer.options]


def test_it_ranks_by_weight_and_price_with_no_fleet_and_no_journal(tmp_path: Path) -> None:
    server = Server(settings_of(tmp_path))
    server.start()
    try:
        assert chosen(server) == ["eks-large"]
        assert ask(server, "/readyz")[0] == 200
        assert json.loads(ask(server, "/nodegroups")[1]) == []
        assert (server.endpoints.provider, server.pass_time) == ("", None)
        assert not (tmp_path / "state" / "journal.sqlite").exists()
    finally:
        server.stop()


def test_it_vetoes_nobody_also_where_the_request_has_no_templates(tmp_path: Path) -> None:
    """As in recordings that were made without them."""
    server = Server(settings_of(tmp_path))
    server.start()
    try:
        with grpc.insecure_channel(server.endpoints.expander) as channel:
            request = request_about({"eks-large": LARGE}, ["eks-large", "unknown"])
            request.nodeBytesMap.clear()
            answer = GrpcClient(channel).ok("BestOptions", request)
        assert [each.nodeGroupId for each in answer.options] == ["eks-large", "unknown"]
    finally:
        server.stop()


def test_in_a_cluster_it_leads_without_a_lease(tmp_path: Path) -> None:
    """Nobody answers for the cluster, and still every replica answers the autoscaler."""
    settings = replace(settings_of(tmp_path), cluster=ClusterSettings(kubeconfig_of(tmp_path, "http://127.0.0.1:1")))
    server = Server(settings)
    try:
        metrics = ask_unstarted(server)
        assert "cagrpc_leader 1.0" in metrics
    finally:
        server.stop()


def ask_unstarted(server: Server) -> str:
    """Its metrics, once only the page is served."""
    server._http.start()
    return ask(server, "/metrics")[1]


@pytest.mark.parametrize(
    ("mode", "flag"),
    [
        (ExpanderMode.DECIDE, "--expander=grpc,least-waste"),
        (ExpanderMode.SHADOW, "--expander=grpc,EXPANDERS_OF_TODAY"),
    ],
)
def test_the_flags_that_are_printed_are_beside_the_cloud_providers_own(
    tmp_path: Path, mode: ExpanderMode, flag: str
) -> None:
    settings = replace(settings_of(tmp_path), answers=AnswerRules(mode))
    server = Server(settings)
    printed = io.StringIO()
    try:
        announce(settings, server.endpoints, Console(file=printed, width=200))
    finally:
        server.stop()
    text = printed.getvalue()
    assert flag in text
    assert f"--grpc-expander-url={server.endpoints.expander}" in text
    assert not any(word in text for word in ("externalgrpc", "cloud-config", "provider  "))
    assert not (tmp_path / "state" / "cloud-config.yaml").exists()
    assert json.loads((tmp_path / "state" / "endpoints.json").read_text())["provider"] == ""
