"""A control plane of one machine: etcd, kube-apiserver with TLS and RBAC, kube-scheduler and kube-controller-manager.
There are no kubelets, so nothing runs unless a test simulates nodes. The pytest fixtures are in `plugin`."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import urllib3
import yaml

from cagrpc.kube.client.client import Client
from cagrpc.server.certificates import ensure_certificates
from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.binaries import CONTROL_PLANE, NEWEST_CONTROL_PLANE, GoModule, build, program
from tests.support.controlplane.processes import Process, free_port, wait_for

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "podgroup-protection-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "taint-eviction-controller",
)
"""Those that pods, nodes, volumes and the built-in roles meet; Services and the cloud's are left out."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Kubernetes with what its gangs take: `spec.schedulingGroup` of pods, and PodGroups."""

    programs: GoModule
    gates: str
    pod_groups: str
    """The version of PodGroups of scheduling.k8s.io, which it serves when asked to."""


RELEASE = Release(
    CONTROL_PLANE, "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true", "v1alpha2"
)
NEWEST = Release(NEWEST_CONTROL_PLANE, "GenericWorkload=true,TopologyAwareWorkloadScheduling=true", "v1beta1")

_ETCD_OPERATIONS = 100
"""Of one transaction; etcd takes 128, and 1.5 MiB."""


class Scoring(StrEnum):
    """The kube-scheduler's scoringStrategy (NodeResourcesFit)."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"


class User(StrEnum):
    """Who a kubeconfig speaks for. The API server knows each by a token."""

    ADMIN = "admin"
    SCHEDULER = "system:kube-scheduler"
    CONTROLLER_MANAGER = "system:kube-controller-manager"
    NOBODY = "nobody"
    """Known, and allowed nothing but what everybody is."""


class ControlPlane:
    """Running once made. What is stopped by a test is started again by it, or `restore` does.

    `directory` receives keys, kubeconfigs and logs; etcd's data is removed at the end. `admin` may do everything.
    """

    def __init__(self, directory: Path, release: Release = RELEASE) -> None:
        self.directory, self.release = directory, release
        self._programs = build(release.programs)
        ensure_certificates(directory)
        self._tokens = {user: f"token-of-{user.replace(':', '-')}" for user in User}
        groups = {User.ADMIN: '"system:masters"'}
        lines = [f"{token},{user},{user},{groups.get(user, '')}\n" for user, token in self._tokens.items()]
        (directory / "tokens.csv").write_text("".join(lines))
        self._etcd_port, self._etcd_peer_port, self._port = free_port(), free_port(), free_port()
        self.admin = self.api(User.ADMIN)
        self._processes: dict[str, Process] = {}
        self._scoring = Scoring.LEAST_ALLOCATED
        self._interrupted = False
        """Whether the API server has been away since the scheduler and the controllers were started."""
        try:
            self._start_etcd()
            self.start_apiserver()
            self.start_scheduler()
            self.start_controller_manager()
        except BaseException:
            self.close()
            raise

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def api(self, user: User = User.ADMIN) -> Api:
        return Api(self.server, self.directory / "ca.crt", self._tokens[user])

    def client(self, user: User = User.ADMIN) -> Client:
        """To be closed by who asked for it."""
        return Client.connect(self.kubeconfig(user))

    def kubeconfig(self, user: User = User.ADMIN) -> Path:
        return self._kubeconfig(user.value, {"token": self._tokens[user]})

    def kubeconfig_of_service_account(self, namespace: str, name: str) -> Path:
        """With a token that the API server issues, as a pod would have; the ServiceAccount must exist."""
        return self._kubeconfig(f"{namespace}-{name}", {"token": self.token_of(namespace, name)})

    def api_of_service_account(self, namespace: str, name: str) -> Api:
        """The same, to be closed by who asked for it."""
        return Api(self.server, self.directory / "ca.crt", self.token_of(namespace, name))

    def token_of(self, namespace: str, name: str) -> str:
        """Of a ServiceAccount, as the API server issues it."""
        answer = self.admin.create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
        )
        return str(answer["status"]["token"])

    def kubeconfig_by_certificate(self) -> Path:
        """Of the user `cluster-autoscaler`, who shows a client certificate and may do nothing."""
        files = {"client-certificate": "client.crt", "client-key": "client.key"}
        return self._kubeconfig("cluster-autoscaler", {key: str(self.directory / name) for key, name in files.items()})

    def _kubeconfig(self, name: str, credentials: dict[str, str]) -> Path:
        cluster = {"server": self.server, "certificate-authority": str(self.directory / "ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": credentials}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        }
        path = self.directory / f"{name.replace(':', '-')}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    # ---- the API server and its storage

    def start_apiserver(self) -> None:
        """Ready when this returns; on the same port and data as before, so that clients find it again."""
        here = self.directory
        process = self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--endpoint-reconciler-type=none",
            f"--client-ca-file={here / 'ca.crt'}",
            f"--token-auth-file={here / 'tokens.csv'}",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={here / 'server.crt'}",
            f"--service-account-signing-key-file={here / 'server.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--delete-collection-workers=16",
            f"--feature-gates={self.release.gates}",
            f"--runtime-config=scheduling.k8s.io/{self.release.pod_groups}=true",
        )
        wait_for(lambda: self._answers("/readyz"), "the API server is ready", process=process)

    def stop_apiserver(self) -> None:
        """As in a crash. Told to end, it would wait a minute for those who watch."""
        self._interrupted = True
        self._processes["kube-apiserver"].stop(kill=True)

    def restart_apiserver(self) -> None:
        self.stop_apiserver()
        self.start_apiserver()

    def forget(self) -> None:
        """Restarted, without any past: watches resumed from before and further pages of older lists are answered 410.

        All of it is needed. The API server keeps some history in memory, a new one takes it from etcd, and to whom
        nothing escaped nothing is refused.
        """
        self.stop_apiserver()
        self._ask_etcd("compaction", {"revision": self._newest_revision(), "physical": True})
        self.start_apiserver()

    def fill(self, objects: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Put objects into etcd by their keys below `/registry`, as a restored backup has them: a hundred thousand in a
        minute, which the API takes half an hour for. The API server, which reads JSON as it reads its own encoding, is
        restarted."""
        self.stop_apiserver()
        left = iter(objects)
        while some := list(islice(left, _ETCD_OPERATIONS)):
            puts = [
                {"requestPut": {"key": _base64(f"/registry/{key}"), "value": _base64(json.dumps(body))}}
                for key, body in some
            ]
            self._ask_etcd("txn", {"success": puts})
        self.start_apiserver()

    def pause_apiserver(self) -> None:
        """As on a machine that has no time for it: connections are taken, and nothing is answered."""
        self._processes["kube-apiserver"].signal(SIGSTOP)

    def resume_apiserver(self) -> None:
        self._processes["kube-apiserver"].signal(SIGCONT)

    def backup(self, into: Path) -> None:
        """Copy all that the API server stores. Nobody answers meanwhile."""
        self._processes["etcd"].stop()
        shutil.copytree(self.directory / "etcd", into)
        self._start_etcd()

    def restore_backup(self, of: Path, *, higher_versions: bool) -> None:
        """Be as in the backup, and restart what is of Kubernetes, as its manual says. Resource versions go on from
        there, and so come again, or are higher than ever, with no past (`etcdutl snapshot restore --bump-revision`)."""
        revision = self._newest_revision()
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self._processes[name].stop(kill=True)
        shutil.rmtree(self.directory / "etcd")
        shutil.copytree(of, self.directory / "etcd")
        self._start_etcd()
        wait_for(self._etcd_answers, "etcd answers", process=self._processes["etcd"])
        if higher_versions:
            while (newest := self._newest_revision()) < revision + 1_000:
                pass
            self._ask_etcd("compaction", {"revision": newest, "physical": True})
        self.start_apiserver()
        self.start_scheduler(self._scoring)
        self.start_controller_manager()

    def _newest_revision(self) -> int:
        """Write something, and return its revision."""
        self._ask_etcd("put", {"key": _base64("/test/moment"), "value": ""})
        return int(self._ask_etcd("range", {"key": _base64("/test/moment")})["header"]["revision"])

    def _etcd_answers(self) -> bool:
        try:
            self._newest_revision()
        except (urllib3.exceptions.HTTPError, AssertionError):
            return False
        return True

    def _ask_etcd(self, what: str, request: Mapping[str, Any]) -> Any:
        with urllib3.PoolManager(retries=False, timeout=30) as pool:
            answer = pool.request("POST", f"http://127.0.0.1:{self._etcd_port}/v3/kv/{what}", json=dict(request))
            assert answer.status == 200, answer.data
            return answer.json()

    def _answers(self, path: str) -> bool:
        try:
            self.admin.get(path)
        except (ApiRefusal, urllib3.exceptions.HTTPError):
            return False
        return True

    def _start_etcd(self) -> None:
        etcd = program("etcd")
        assert etcd, "asked for only where nothing is lacking"
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._etcd_peer_port))
        self._processes["etcd"] = Process(
            [
                etcd,
                "--name=test",
                f"--data-dir={self.directory / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=test={peer}",
                "--logger=zap",
            ],
            self.directory / "etcd.log",
        )

    # ---- the scheduler and the controllers

    def start_scheduler(
        self, scoring: Scoring = Scoring.LEAST_ALLOCATED, extenders: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        resources = [{"name": name, "weight": 1} for name in ("cpu", "memory")]
        fit = {"scoringStrategy": {"type": scoring.value, "resources": resources}}
        document: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig(User.SCHEDULER)), "qps": 1_000, "burst": 2_000},
            "podMaxBackoffSeconds": 2,
            "profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": fit}]}],
            "extenders": [dict(each) for each in extenders],
        }
        path = self.directory / "scheduler.yaml"
        path.write_text(yaml.safe_dump(document))
        port = free_port()
        process = self._start(
            "kube-scheduler",
            f"--config={path}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--feature-gates={self.release.gates}",
            "--v=2",
        )
        self._scoring = scoring
        self._wait_until_healthy(process, port)

    def stop_scheduler(self) -> None:
        self._processes["kube-scheduler"].stop()

    @contextmanager
    def scheduler(self, scoring: Scoring, extenders: Sequence[Mapping[str, Any]] = ()) -> Iterator[None]:
        """Another profile, or extenders, for a while."""
        if scoring is self._scoring and not extenders and self._processes["kube-scheduler"].running:
            yield
            return
        before = self._scoring
        self.stop_scheduler()
        self.start_scheduler(scoring, extenders)
        try:
            yield
        finally:
            self.stop_scheduler()
            self.start_scheduler(before)

    def start_controller_manager(self, *flags: str) -> None:
        """`flags` are more of them."""
        port = free_port()
        process = self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig(User.CONTROLLER_MANAGER)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.directory / 'server.key'}",
            f"--root-ca-file={self.directory / 'ca.crt'}",
            f"--controllers={','.join(CONTROLLERS)}",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            # A Node without a Lease stays Ready, even where another test had its name: heartbeats are remembered.
            "--node-monitor-grace-period=24h",
            f"--feature-gates={self.release.gates}",
            "--v=2",
            *flags,
        )
        self._wait_until_healthy(process, port)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_for(lambda: self._answers(account), "the controllers make ServiceAccounts", process=process)

    def stop_controller_manager(self) -> None:
        self._processes["kube-controller-manager"].stop()

    def restart_controller_manager(self, *flags: str) -> None:
        """Its garbage collector knows of new kinds from then on, for which it looks only every 30 s otherwise."""
        self.stop_controller_manager()
        self.start_controller_manager(*flags)

    @contextmanager
    def controller_manager(self, *flags: str) -> Iterator[None]:
        """With more flags for a while."""
        self.restart_controller_manager(*flags)
        try:
            yield
        finally:
            self.restart_controller_manager()

    def _wait_until_healthy(self, process: Process, port: int) -> None:
        with urllib3.PoolManager(ca_certs=str(self.directory / "ca.crt"), retries=False, timeout=5) as pool:

            def healthy() -> bool:
                try:
                    return pool.request("GET", f"https://127.0.0.1:{port}/healthz").status == 200
                except urllib3.exceptions.HTTPError:
                    return False

            wait_for(healthy, f"{process.name} is healthy", process=process)

    # ---- all of it

    def last_words(self, name: str) -> str:
        """Return the end of a program's log."""
        return self._processes[name].last_words()

    def restore(self) -> None:
        """Start again what a test left stopped, and the usual profile of the scheduler; the scheduler and the
        controllers, too, where the API server was away. What they watch comes back up to half a minute later, and of
        what happens until then some is lost on them: a ReplicaSet whose new pod is deleted before it is seen makes no
        other for five minutes."""
        running = {name for name, process in self._processes.items() if process.running}
        if "kube-apiserver" not in running:
            self.start_apiserver()
        anew, self._interrupted = self._interrupted, False
        if anew or "kube-scheduler" not in running or self._scoring is not Scoring.LEAST_ALLOCATED:
            self.stop_scheduler()
            self.start_scheduler()
        if anew or "kube-controller-manager" not in running:
            self.restart_controller_manager()

    def close(self) -> None:
        """Everything ends at once: nobody will read etcd's data again."""
        for process in reversed(self._processes.values()):
            process.stop(kill=True)
        self.admin.close()
        shutil.rmtree(self.directory / "etcd", ignore_errors=True)

    def _start(self, name: str, *flags: str) -> Process:
        certificate, key = self.directory / "server.crt", self.directory / "server.key"
        tls = [f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"]
        process = Process([self._programs / name, *tls, *flags], self.directory / f"{name}.log")
        self._processes[name] = process
        return process


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
