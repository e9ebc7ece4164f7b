"""Whether a NodeClass is Ready, for NodeClaims that went without an Event. Asked only then."""

from __future__ import annotations

from cagrpc.api.core.resources import mapping, members
from cagrpc.backends.karpenter.plugin import NodeClass
from cagrpc.errors import CagrpcError
from cagrpc.kube.client.client import Client


def why_not_ready(client: Client, found: NodeClass) -> str | None:
    """Return what is wrong with a NodeClass; None where it is Ready, or cannot be read. Its collection is called as
    kubebuilder calls those of kinds that end in "Class"."""
    try:
        group = client.get(f"/apis/{found.group}")
        version = mapping(group, "preferredVersion", "", []).get("groupVersion")
        document = client.get(f"/apis/{version}/{found.kind.lower()}es/{found.name}")
    except CagrpcError:
        return None
    for condition, _ in members(mapping(document, "status", "", []), "conditions", "", []):
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return f"{found.kind} {found.name} is not Ready: {condition.get('message') or condition.get('reason')}"
    return None
