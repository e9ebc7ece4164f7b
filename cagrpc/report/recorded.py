"""Objects of a recorded conversation of a cluster-autoscaler: the pods that it asked nodes for, and the nodes that it
ordered. What runs on which node is in no recording."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cagrpc.api.autoscaler.expander import parse_request
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.gen import externalgrpc_pb2, kubernetes_pb2
from cagrpc.cluster.documents import DocumentReader
from cagrpc.errors import InvalidInput
from cagrpc.replay.recording import BEST_OPTIONS, read_recording

_OK = "OK"


def read_recorded(name: str, reader: DocumentReader) -> tuple[str, ...]:
    """Give the reader the pods and nodes of a recording, a file or an embedded one; return warnings. Raises
    InvalidInput for one that cannot be read, or has no pods."""
    templates: dict[str, Any] = {}
    ordered: Counter[str] = Counter()
    pods: dict[str, ManifestDocument] = {}
    for call in read_recording(name):
        if call.code != _OK:
            continue
        match call.method:
            case "NodeGroupTemplateNodeInfo":
                group = parse(externalgrpc_pb2.NodeGroupTemplateNodeInfoRequest, call.request).id
                answer = parse(externalgrpc_pb2.NodeGroupTemplateNodeInfoResponse, call.response)
                templates[group] = _template(answer)
            case "NodeGroupIncreaseSize":
                asked = parse(externalgrpc_pb2.NodeGroupIncreaseSizeRequest, call.request)
                ordered[asked.id] += asked.delta
            case _ if call.method == BEST_OPTIONS:
                _add_pods(pods, call.request)
    if not pods:
        raise InvalidInput(
            f"{name}: no pods were asked about in this conversation; a report needs a call of BestOptions"
        )
    reader.add(pods.values())
    for group in ordered.keys() & templates.keys():
        reader.add(_node(templates[group], f"{group}-{index}") for index in range(ordered[group]))
    missing = sorted(ordered.keys() - templates.keys())
    return (f"nodes were ordered of {', '.join(missing)}, of which the recording has no template",) if missing else ()


def _template(answer: externalgrpc_pb2.NodeGroupTemplateNodeInfoResponse) -> Any:
    data = answer.nodeBytes or answer.nodeInfo
    return message_to_dict(parse(kubernetes_pb2.Node, data) if isinstance(data, bytes) else data)


def _node(template: Any, name: str) -> ManifestDocument:
    body = {**template, "kind": "Node", "metadata": {**template.get("metadata", {}), "name": name}}
    return ManifestDocument(f"node {name}", body)


def _add_pods(pods: dict[str, ManifestDocument], request: bytes) -> None:
    """Add the pods of a request that are new: CA asks again for those that still wait."""
    known: set[bytes] = set()
    for option in parse_request(request).options:
        for data in option.podBytes or option.pod:
            if data in known:
                continue
            known.add(data)
            body = message_to_dict(parse(kubernetes_pb2.Pod, data))
            metadata = body.get("metadata", {})
            key = str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")
            metadata.pop("creationTimestamp", None)
            pods.setdefault(key, ManifestDocument(f"pod {key}", {**body, "kind": "Pod"}))
