"""Errors of the API server: the one place that converts an HTTP status and metav1.Status to cagrpc's errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cagrpc.api.encoding.json_documents import json_value
from cagrpc.api.encoding.messages import known_to_message, parse
from cagrpc.api.gen import api_pb2
from cagrpc.errors import CagrpcError, Conflict, InvalidInput, NotFound, Unavailable
from cagrpc.kube.client.envelopes import enveloped

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_LONGEST_TEXT = 500
_TOO_LARGE = "ResourceVersionTooLarge"
"""The cause of a Status, as in client-go's IsTooLargeResourceVersionError."""


class Expired(Unavailable):
    """The requested resource version, or continuation of a list, has expired (410), or the server, restored from an
    older backup, has not come to it yet (504)."""


class Forbidden(Unavailable):
    """A permission is missing (403)."""


class TooManyRequests(Unavailable):
    """Refused for now (429): the server is busy, or a PodDisruptionBudget does not let a pod go."""


_KINDS: Mapping[int, type[CagrpcError]] = {
    **dict.fromkeys((400, 405, 406, 413, 415, 422), InvalidInput),
    404: NotFound,
    409: Conflict,
    410: Expired,
    429: TooManyRequests,
}


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request in the terms of RBAC."""

    verb: str
    resource: str
    """The resource with its API group and the subresource, if any: `pods/binding`, `leases.coordination.k8s.io`."""
    namespace: str
    name: str

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"


def request_info(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    """Return the RBAC terms of a request to `path` (`/api/v1/namespaces/n/pods/p/binding`, `/apis/GROUP/VERSION/…`)."""
    parts = path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" and len(parts) > 2 else ""
    rest = parts[3:] if group else parts[2:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "", "")[:3]
    verb = _VERBS.get(method) or ("watch" if query.get("watch") else "get" if name else "list")
    kind = (f"{resource}.{group}" if group else resource) or path
    return RequestInfo(verb, f"{kind}/{subresource}" if subresource else kind, namespace, name)


def status_of(body: bytes) -> api_pb2.Status:
    """Return the metav1.Status in an error's body, protobuf or JSON; of anything else (a proxy's page) the text."""
    try:
        if (raw := enveloped(body)) is not None:
            return parse(api_pb2.Status, raw)
        return known_to_message(api_pb2.Status, json_value(body))
    except (ValueError, InvalidInput):
        return api_pb2.Status(message=body.decode(errors="replace").strip())


def failure(server: str, request: RequestInfo, code: int, status: api_pb2.Status) -> CagrpcError:
    """Return the error to raise for a failed request."""
    message = status.message[:_LONGEST_TEXT] or status.reason or "no reason was given"
    text = f"{server}: {request}: {message}"
    if code == 401:
        return Unavailable(f"{server} does not accept our credentials ({message}); renew those of the kubeconfig")
    if code == 403:
        return Forbidden(
            f"{server}: the right to {request.verb} {request.resource} is missing; the roles in deploy/ give it"
            f" ({message})"
        )
    too_large = any(each.reason == _TOO_LARGE for each in status.details.causes)
    kind = Expired if too_large else _KINDS.get(code)
    if kind is TooManyRequests:
        return TooManyRequests(f"{text} (HTTP {code})")
    return kind(text) if kind else Unavailable(f"{text} (HTTP {code})")
