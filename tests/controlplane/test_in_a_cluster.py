"""docs/guides/in-a-cluster.md, played: its commands, by Helm and kubectl themselves, as they stand there. There are no
kubelets, so nothing is forwarded; what runs in the pods is in test_chart.py."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.lists import not_run, plain
from tests.support.commands import ROOT, PageReader, commands, play
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import CRDS, remove, remove_crds
from tests.support.controlplane.helm import Helm
from tests.support.controlplane.kubectl import Kubectl
from tests.support.controlplane.processes import wait_for
from tools.manifests import MANIFESTS

PAGE = "docs/guides/in-a-cluster.md"
TEXT = (ROOT / PAGE).read_text()
NAMESPACES = "/api/v1/namespaces"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
REFUSED = "--set config.drive=fly"
PLAYED = ("## With Helm", "## Plain manifests", "## Who reads", "## The journal in a cluster")


def section(heading: str) -> str:
    """Return one section of the page, with those below it."""
    level = heading.partition(" ")[0]
    (found,) = re.findall(rf"^{heading}\n(.*?)(?=^#{{2,{len(level)}}} |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def type_(reader: PageReader, heading: str) -> None:
    """Type the commands of a section."""
    left_out = not_run(PAGE)
    play(reader, commands(section(heading)), lambda command: plain(command) in left_out or REFUSED in command)


def test_every_command_is_in_a_section_that_is_played() -> None:
    assert [command for each in PLAYED for command in commands(section(each))] == commands(TEXT)


@pytest.fixture
def reader(kubectl: Kubectl, cluster: Cluster, tmp_path: Path) -> Iterator[PageReader]:
    admin = cluster.admin

    def clear() -> None:
        """As in a cluster that has never seen it."""
        for each in ("crds", "provisioning-crds", "slack-crds", "buffer-crds"):
            remove_crds(admin, f"{each}.yaml")
        admin.delete(f"{NAMESPACES}/cagrpc")
        admin.delete(f"{NAMESPACES}/cagrpc/pods", gracePeriodSeconds=0)
        wait_for(lambda: "cagrpc" not in {n["metadata"]["name"] for n in admin.items(NAMESPACES)}, "it is gone")

    clear()
    environment = dict(kubectl.environment(cluster.plane.kubeconfig()))
    directory = tmp_path / "reader"
    environment["PATH"] = os.pathsep.join([str(directory / ".venv" / "bin"), environment["PATH"]])
    reader = PageReader(directory, {**environment, "HOME": str(directory)})
    yield reader
    remove(admin, *(f"{each}.yaml" for each in MANIFESTS if each not in ("certificates", "monitoring", "try-slack")))
    for each in ("prometheus-reads-cagrpc", "cagrpc-reader"):
        admin.delete(f"{BINDINGS}/{each}")
    clear()


@pytest.fixture
def reader_with_helm(reader: PageReader, helm: Helm) -> Iterator[PageReader]:
    path = os.pathsep.join([str(helm.program.parent), reader.environment["PATH"]])
    reader.environment = {**reader.environment, "PATH": path}
    yield reader
    reader.run("helm uninstall cagrpc --namespace cagrpc --ignore-not-found")


def test_with_helm(reader_with_helm: PageReader, cluster: Cluster) -> None:
    reader = reader_with_helm
    (refused,) = [command for command in commands(section("## With Helm")) if REFUSED in command]
    with pytest.raises(AssertionError) as told:
        reader.run(refused)
    assert TEXT.partition(f"$ {refused}\n")[2].partition("```")[0] in str(told.value)

    type_(reader, "## With Helm")  # the last command takes over what stands, and so installs where nothing does
    assert reader.run("helm list --namespace cagrpc --output json").count("deployed") == 1
    reader.run("helm uninstall cagrpc --namespace cagrpc")
    assert "increments.cagrpc.io" in {each["metadata"]["name"] for each in cluster.admin.items(CRDS)}
    removals = re.findall(r"\| `(kubectl [^`]+)` \|", section("### What stays after `helm uninstall`"))
    assert len(removals) == 3
    for each in removals:
        reader.run(each.replace("delete", "delete --wait=false --ignore-not-found"))
    wait_for(
        lambda: not any(each["metadata"]["name"].endswith(".cagrpc.io") for each in cluster.admin.items(CRDS)),
        "the definitions are gone",
    )


def test_with_kubectl(reader: PageReader, cluster: Cluster) -> None:
    type_(reader, "## Plain manifests")
    deployment = "/apis/apps/v1/namespaces/cagrpc/deployments/cagrpc"
    wait_for(lambda: cluster.admin.get(deployment)["status"].get("replicas") == 2, "two servers are wanted")
    definitions = {each["metadata"]["name"] for each in cluster.admin.items(CRDS)}
    assert {"increments.cagrpc.io", "provisioningrequests.autoscaling.x-k8s.io"} <= definitions
    cluster.admin.ensure(NAMESPACES, {"metadata": {"name": "monitoring"}})
    type_(reader, "## Who reads")
    type_(reader, "## The journal in a cluster")
