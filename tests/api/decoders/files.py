"""What people, and other programs, put into files: the configuration, manifests, catalogues, recordings, the journal. A
file that cannot be read is refused with what is wrong in it."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

from kubernetes.client import Configuration

from cagrpc.config.files import load_provisioners
from cagrpc.config.load import parse_settings
from cagrpc.errors import CagrpcError
from cagrpc.fleet.catalogue import embedded_catalogue, parse_catalogue
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.records import Changes, GroupRecord, IncrementRecord
from cagrpc.kube.client.access import from_kubeconfig
from cagrpc.offline.previous import read_previous
from cagrpc.replay.recording import read_recording
from tests.support import described as manifests
from tests.support.fleet import group

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_NOWHERE = Path("/nowhere")
_GROUP = {
    "id": "small",
    "allocatable": {"cpu": "2", "memory": "8Gi", "pods": 29, "nvidia.com/gpu": 1},
    "price_usd_per_hour": 0.1,
    "labels": {"zone": "a"},
    "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
    "max_size": 5,
}
_CONFIGURATION: dict[str, Any] = {
    "backend": {"simulated": {"*": {"boot": "5s", "stock": 3}}},
    "provisioners": [{"name": "one", "weight": 10, "limits": {"nodes": 5}, "node_groups": [_GROUP]}],
    "planner": {"idle": "1s", "window": "10s"},
    "limits": {"cpu": "100", "memory": "1Ti"},
    "listen": {"http": "127.0.0.1:8088"},
    "slack": {"headroom": [{"pods": 5, "requests": {"cpu": "1"}}]},
    "provisioning_requests": {"booking": "1m"},
    "increment_deadline": "5m",
}
_PROVISIONER = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "pool"},
    "spec": {
        "weight": 5,
        "limits": {"cpu": "10"},
        "template": {
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}
                ],
            }
        },
        "disruption": {"budgets": [{"nodes": "10%", "schedule": "@daily", "duration": "1h"}]},
    },
}
_PLAN = {
    "pod_classes": [{"example": "ns/web", "count": 2, "requests": {"cpu": 100}}],
    "increments": [{"node_group": "small", "count": 1}],
    "nodes": [{"node_group": "small", "count": 1, "pods": [{"class": 0, "count": 2}]}],
}
_KUBECONFIG = {
    "current-context": "it",
    "clusters": [{"name": "it", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "it", "user": {"token": "x"}}],
    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
}
_CALL = {"seconds": 3.7, "method": "NodeGroupNodes", "request": "CgltN2kubGFyZ2U=", "code": "OK", "response": ""}


class _File:
    """One file, with another content each time."""

    def __init__(self, name: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.path = Path(self._directory.name) / name

    def read(self, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def written(data: bytes) -> object:
            self.path.write_bytes(data)
            return read(self.path)

        return written


def _embedded_catalogue_text() -> bytes:
    text = (resources.files("cagrpc") / "data" / "catalog" / "aws-us-east-1.csv").read_text()
    return "\n".join(text.splitlines()[:4]).encode()


def _journal_bytes(record: IncrementRecord) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.sqlite"
        journal = SqliteJournal(path)
        journal.commit(Changes(increments=(record,), groups=(GroupRecord(group("a"), ("limit",)),)))
        journal.close()
        return path.read_bytes()


def _read_journal(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}-*"):
        each.unlink()
    with closing(SqliteJournal(path, busy_seconds=0.0)) as journal:
        journal.read()


def readers(
    template: Any, record: IncrementRecord
) -> Iterator[tuple[str, Callable[[bytes], object], tuple[Any, ...], tuple[type[Exception], ...]]]:
    """Yield name, reader, seeds and errors of each kind of file. `template` is of a pod, `record` of an increment."""
    catalogue = embedded_catalogue()
    refused = (CagrpcError,)

    def text(data: bytes) -> str:
        return data.decode(errors="replace")

    yield "a configuration", lambda data: parse_settings(text(data), "c.yaml", _NOWHERE), (_CONFIGURATION,), refused
    yield "a catalogue", lambda data: parse_catalogue(text(data), "c.csv"), (_embedded_catalogue_text(),), refused
    file = _File("provisioners.yaml")
    yield "provisioners", file.read(lambda path: load_provisioners([path], catalogue)), (_PROVISIONER,), refused
    objects = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {"replicas": 3, "template": template},
        },
    ]
    found = {"apiVersion": "v1", "kind": "List", "items": objects}
    yield "manifests", _File("m.yaml").read(lambda path: manifests.read([path])), (found, *objects), refused
    yield "a table of pods", _File("p.csv").read(lambda path: manifests.read([path])), (_TABLE,), refused
    yield "a previous plan", _File("plan.json").read(lambda path: read_previous(path, [])), (_PLAN,), refused
    kubeconfig = _File("kubeconfig").read(lambda path: from_kubeconfig(path)(Configuration()))
    yield "a kubeconfig", kubeconfig, (_KUBECONFIG,), refused
    recording = _File("r.jsonl.gz").read(lambda path: read_recording(str(path)))
    lines = json.dumps(_CALL).encode() + b"\n"
    yield "a recording", recording, (gzip.compress(lines),), refused
    yield "lines of a recording", lambda data: recording(gzip.compress(data)), (lines,), refused
    yield "a journal's file", _File("journal.sqlite").read(_read_journal), (_journal_bytes(record),), refused


_TABLE = b"name,cpu_milli,memory_mib,num_gpu\na,100,128,0\nb,2000,512,1\n"
