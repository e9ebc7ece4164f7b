"""docs/guides/try-slack.md, played on the control plane: its commands that are kubectl's or cagrpc's, in order. There
are no kubelets, so the server runs beside the cluster, with the configuration and the rights that the page gives it."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.cluster.markers import SCALE_DOWN_DISABLED
from tests.support.controlplane import deployed
from tests.support.controlplane.api import Api
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.live import Live
from tests.support.controlplane.slack import SeenSlack
from tests.support.serving import cagrpc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "try-slack.md").read_text()
NEED_KUBELETS = ("rollout restart", "port-forward")
"""Of kubectl: what it needs does not run here."""
OF_THE_MACHINE = ("kind", "docker")
KINDS = {
    "slacks": "/apis/cagrpc.io/v1alpha1",
    "increments": "/apis/cagrpc.io/v1alpha1",
    "capacitybuffers": "/apis/autoscaling.x-k8s.io/v1beta1",
    "podtemplates": "/api/v1",
    "nodes": "/api/v1",
    "pods": "/api/v1",
}
WITHOUT_NAMESPACE = ("increments", "nodes")


def commands(heading: str) -> list[list[str]]:
    """Of one section of the page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@dataclass
class Reader:
    """Who reads the page, in a directory of their own."""

    admin: Api
    directory: Path
    http: Callable[[], str]
    said: list[str] = field(default_factory=list)
    """What commands have told."""

    def play(self, heading: str) -> None:
        for command in commands(heading):
            self._run(command)

    def _run(self, command: list[str]) -> None:
        if command[0] == "cagrpc":
            self._cagrpc(command[1:])
        elif command[0] == "kubectl":
            self._kubectl(command[1:])
        else:
            assert command[0] in OF_THE_MACHINE, command

    def _cagrpc(self, arguments: list[str]) -> None:
        if arguments[0] == "certs":
            arguments[arguments.index("--dir") + 1] = str(self.directory / "certs")
        else:
            arguments += ["--http", self.http()]
        done = cagrpc(*arguments)
        assert done.returncode == 0, done.stderr
        self.said.append(done.stdout)

    def _kubectl(self, arguments: list[str]) -> None:
        namespace = "default"
        if arguments[0] == "--namespace":
            namespace, arguments = arguments[1], arguments[2:]
        match arguments:
            case ["apply" | "create" as verb, *rest] if "-f" in rest:
                for flag, file in pairwise(rest):
                    if flag == "-f":
                        self._files(verb, file)
            case ["create", "secret", "generic", name, *files]:
                parts = [each.removeprefix("--from-file=").split("=") for each in files]
                data = {key: base64.b64encode((self.directory / path).read_bytes()).decode() for key, path in parts}
                secret = {"metadata": {"name": name}, "data": data}
                self.admin.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
            case ["scale", "deployment", name, replicas]:
                body = {"spec": {"replicas": int(replicas.removeprefix("--replicas="))}}
                self.admin.merge(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}", body)
            case ["get" | "describe", kinds, *_]:
                for kind in kinds.split(","):
                    where = "" if kind in WITHOUT_NAMESPACE else f"/namespaces/{namespace}"
                    self.admin.items(f"{KINDS[kind]}{where}/{kind}")
            case _:
                assert " ".join(arguments).startswith(NEED_KUBELETS), arguments

    def _files(self, verb: str, file: str) -> None:
        name = file.removeprefix("deploy/")
        for document in deployed.documents(name):
            if verb == "create":
                self.admin.create(deployed.CRDS, document)
            else:
                deployed.apply(self.admin, document)
            if document["kind"] == "CustomResourceDefinition":
                deployed.wait_until_served(self.admin, document)


@pytest.fixture
def reader(cluster: Cluster, live: Live, tmp_path: Path) -> Iterator[Reader]:
    # As in a cluster of kind: a node that is none of the fleet.
    cluster.create_node("kind-control-plane", {"cpu": "8", "memory": "16Gi"}, labels={"kubernetes.io/os": "linux"})
    yield Reader(cluster.admin, tmp_path, lambda: live.serving.endpoints["http"])
    live.close()
    files = [file for command in commands("Install") for file in command if file.startswith("deploy/")]
    cluster.admin.delete("/api/v1/namespaces/cagrpc/secrets")
    deployed.remove(cluster.admin, *(file.removeprefix("deploy/") for file in files))


def configure(live: Live) -> None:
    """As the page does, but for what is of a pod alone."""
    (found,) = [each for each in deployed.documents("try-slack.yaml") if each["kind"] == "ConfigMap"]
    written: dict[str, Any] = yaml.safe_load(found["data"]["cagrpc.yaml"])
    del written["tls"], written["backend"]["file"], written["kubernetes"]["in_cluster"]
    kubeconfig = live.cluster.plane.kubeconfig_of_service_account("cagrpc", "cagrpc")
    written["kubernetes"]["kubeconfig"] = str(kubeconfig)
    written["backend"]["simulated"]["*"] = {"boot": "2s", "delete": "0.2s"}
    live.write(written)


def test_the_page(reader: Reader, live: Live) -> None:
    reader.play("Install")
    configure(live)
    live.start()
    seen = SeenSlack(reader.admin, "cagrpc")

    def held() -> bool:
        return [each["held"] for each in live.serving.get("/slack").get("targets", ())] == [4]

    live.wait_for(held, "four placeholders are held")
    live.wait_until_settled()
    reader.play("What is held")
    assert "burst" in reader.said[-1]
    live.wait_for(lambda: list(seen.counts().values()) == [4], "CA would inject the four of them")
    before = {node["metadata"]["name"] for node in live.nodes()}

    reader.play("A burst")
    load = "/api/v1/namespaces/default/pods"

    def where() -> set[str]:
        pods = reader.admin.items(load, labelSelector="app=load")
        return {pod["spec"].get("nodeName", "") for pod in pods} if len(pods) == 4 else {""}

    live.wait_for(lambda: "" not in where(), "the burst is bound")
    assert where() <= before
    live.wait_for(lambda: len(live.increments()) == 2, "one increment restores the slack")
    live.wait_for(held, "four placeholders are held again")
    live.wait_until_settled()

    reader.play("Less again")
    live.wait_for(lambda: not reader.admin.items(load, labelSelector="app=load"), "the load is gone")

    def stay() -> set[str]:
        told = {node["metadata"]["name"]: node["metadata"].get("annotations", {}) for node in live.nodes()}
        return {name for name, annotations in told.items() if SCALE_DOWN_DISABLED in annotations}

    live.wait_for(lambda: len(stay()) == len(before), "as many nodes stay as the slack needs; the others are CA's")
    assert held()
    assert "the right to" not in live.serving.log()


def test_the_configuration_and_the_flags_are_such(tmp_path: Path) -> None:
    for name in ("try-slack.yaml", "ca.yaml"):
        kinds = [each["kind"] for each in deployed.documents(name)]
        assert "Deployment" in kinds
        assert "ConfigMap" in kinds
    (found,) = [each for each in deployed.documents("try-slack.yaml") if each["kind"] == "ConfigMap"]
    path = tmp_path / "cagrpc.yaml"
    path.write_text(found["data"]["cagrpc.yaml"])
    done = cagrpc("config", "check", path)
    assert done.returncode == 0, done.stderr
