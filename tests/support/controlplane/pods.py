"""Pods of the Deployment `cagrpc`, run as processes of this machine: with the command of the image, the arguments and
the environment of the pod, the content of its volumes, and a token of its ServiceAccount. Paths are below a directory,
and the ports are free ones; the probe is the pod's own, and what comes of it is its readiness."""

from __future__ import annotations

import base64
import json
import re
import shutil
import ssl
import sys
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import DEPLOY
from tests.support.controlplane.processes import Process, wait_for

PATIENCE_SECONDS = 120.0
SELECTOR = "app.kubernetes.io/name=cagrpc"
_SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"


def entry_point() -> list[str]:
    """Return the image's."""
    (found,) = re.findall(r"^ENTRYPOINT (\[.*\])$", (DEPLOY.parent / "Dockerfile").read_text(), re.MULTILINE)
    return list(json.loads(found))


@dataclass
class PodProcess:
    """One pod, and its process."""

    pod: dict[str, Any]
    process: Process
    log_file: Path
    state: Path
    reported: bool | None = None
    """Whether its status says that it is ready; None before it says anything."""

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def endpoints(self) -> dict[str, Any]:
        """Where it listens; empty until it does."""
        path = self.state / "endpoints.json"
        text = path.read_text() if path.exists() else ""
        found: dict[str, Any] = json.loads(text) if text.endswith("\n") else {}
        return found if found.get("pid") == self.process.pid else {}

    def url(self, page: str, scheme: str = "https") -> str:
        """On this machine."""
        port = self.endpoints["http"].rpartition(":")[2]
        return f"{scheme}://127.0.0.1:{port}{page}"

    def log(self) -> str:
        return self.log_file.read_text()

    def is_ready(self) -> bool:
        """By its readiness probe; as for kubelets any certificate will do."""
        (container,) = self.pod["spec"]["containers"]
        probe = container["readinessProbe"]["httpGet"]
        assert probe["port"] in {each["name"] for each in container["ports"]}
        if not self.process.running or not self.endpoints:
            return False
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            url = self.url(probe["path"], probe["scheme"].lower())
            with urllib.request.urlopen(url, timeout=10, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:  # HTTP's errors are such, too
            return False


class Pods:
    """The pods of one namespace: `look` does what kubelets would have done since."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        self._admin = cluster.admin
        self._plane = cluster.plane
        self._path = f"/api/v1/namespaces/{namespace}"
        self._namespace = namespace
        self._directory = directory
        self.running: dict[str, PodProcess] = {}
        self.ended: list[PodProcess] = []
        """Whose pods are gone."""

    def look(self) -> None:
        """Start what was bound, end what was deleted, start again what has ended, and report who is ready."""
        found = {
            each["metadata"]["name"]: each for each in self._admin.items(f"{self._path}/pods", labelSelector=SELECTOR)
        }
        for name, pod in found.items():
            if "deletionTimestamp" in pod["metadata"]:
                self._end(name)
                self._admin.delete(f"{self._path}/pods/{name}", gracePeriodSeconds=0)
            elif pod["spec"].get("nodeName"):
                one = self.running.get(name)
                if one is None or not one.process.running:
                    self.running[name] = self._start(pod)
                self._report(self.running[name])
        for name in self.running.keys() - found.keys():
            self._end(name)

    def ready(self) -> list[PodProcess]:
        """After a look."""
        self.look()
        return [each for each in self.running.values() if each.reported]

    def wait_until_gone(self, *names: str) -> None:
        """Those of these names; without any, all."""

        def gone() -> bool:
            self.look()
            return not (set(names) & self.running.keys() if names else self.running)

        wait_for(gone, "the pods are gone", seconds=PATIENCE_SECONDS)

    def wait_for_a_leader(self, count: int, *, but: str = "") -> PodProcess:
        """Of so many that run; `but` is one that it is not."""
        found: list[PodProcess] = []

        def one() -> bool:
            found[:] = [each for each in self.ready() if each.name != but]
            return len(found) == 1 and len(self.running) == count

        try:
            wait_for(one, f"one of {count} is ready", seconds=PATIENCE_SECONDS)
        except AssertionError as error:
            for each in self.running.values():
                error.add_note(f"{each.name}: {each.log()[-4000:]}")
            raise
        return found[0]

    def logs(self) -> str:
        """Of all that ever ran."""
        return "\n".join(each.log() for each in (*self.running.values(), *self.ended))

    def close(self) -> None:
        for each in self.running.values():
            each.process.stop(kill=True)

    def _report(self, one: PodProcess) -> None:
        ready = one.is_ready()
        if ready is one.reported:
            return
        one.reported = ready
        conditions = [{"type": each, "status": str(ready)} for each in ("Ready", "ContainersReady")]
        with suppress(ApiRefusal):  # gone meanwhile
            patch = {"status": {"phase": "Running", "conditions": conditions}}
            self._admin.merge(f"{self._path}/pods/{one.name}/status", patch)

    def _end(self, name: str) -> None:
        one = self.running.pop(name, None)
        if one is not None:
            one.process.stop()
            self.ended.append(one)

    def _start(self, pod: dict[str, Any]) -> PodProcess:
        name = pod["metadata"]["name"]
        root = self._directory / name
        (container,) = pod["spec"]["containers"]
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        for path, volume in mounted.items():
            self._fill(pod, root, path, volumes[volume])
        paths = re.compile(rf"(?<![\w/.-])({'|'.join(map(re.escape, mounted))})(?![\w-])")

        def below(text: str) -> str:
            return paths.sub(lambda found: str(root) + found[1], text)

        for path in mounted:
            for file in (root / path[1:]).glob("*.yaml"):
                file.write_text(below(file.read_text()))
        image, *words = entry_point()
        assert image == "cagrpc"
        words = [re.sub(r"^0\.0\.0\.0:\d+$", "0.0.0.0:0", word) for word in words]
        arguments = [below(word) for word in (*words, *container["args"])]
        environment = {}
        for each in container.get("env", ()):
            if "valueFrom" in each:
                assert each["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
                environment[each["name"]] = pod["spec"]["nodeName"]
            else:
                environment[each["name"]] = below(each["value"])
        server, _, port = self._plane.server.removeprefix("https://").partition(":")
        environment |= {"KUBERNETES_SERVICE_HOST": server, "KUBERNETES_SERVICE_PORT": port}
        command = [sys.executable, "-m", "tests.support.controlplane.in_pod", str(root), *arguments]
        log = root / "log"
        process = Process(command, log, environment)
        return PodProcess(pod, process, log, root / "var" / "lib" / "cagrpc")

    def _fill(self, pod: dict[str, Any], root: Path, path: str, volume: dict[str, Any]) -> None:
        """With what the kubelet would mount there."""
        directory = root / path[1:]
        if "persistentVolumeClaim" in volume:
            shared = self._directory / volume["persistentVolumeClaim"]["claimName"]
            shared.mkdir(exist_ok=True)
            if not directory.is_symlink():
                directory.parent.mkdir(parents=True, exist_ok=True)
                directory.symlink_to(shared)
            return
        directory.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            data = self._admin.get(f"{self._path}/configmaps/{volume['configMap']['name']}")["data"]
            for name, text in data.items():
                (directory / name).write_text(text)
        elif "secret" in volume:
            data = self._admin.get(f"{self._path}/secrets/{volume['secret']['secretName']}")["data"]
            for name, text in data.items():
                (directory / name).write_bytes(base64.b64decode(text))
        elif "projected" in volume:
            assert path == _SECRETS
            account = pod["spec"]["serviceAccountName"]
            (directory / "token").write_text(self._plane.token_of(self._namespace, account))
            shutil.copy(self._plane.directory / "ca.crt", directory / "ca.crt")
            (directory / "namespace").write_text(self._namespace)
        else:
            assert volume["emptyDir"] == {}
