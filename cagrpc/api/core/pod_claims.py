"""What a pod says of its resource claims: spec.resourceClaims, and what its status says was made of its templates. What
they come to is known where the claims are (`cagrpc.api.devices`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.resources import Problems, mapping, members


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A member of spec.resourceClaims."""

    name: str
    claim: str = ""
    """resourceClaimName,"""
    template: str = ""
    """or resourceClaimTemplateName."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    claims: tuple[PodClaim, ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    """(name, ResourceClaim; empty where none was needed): status.resourceClaimStatuses, sorted."""


NO_CLAIMS = PodClaims()


def pod_claims(pod: Mapping[str, Any], problems: Problems) -> PodClaims:
    """Read the claims of a v1.Pod, or of a template, in JSON shape."""
    spec, status = mapping(pod, "spec", "", problems), mapping(pod, "status", "", problems)
    claims = tuple(
        PodClaim(
            str(each.get("name") or ""),
            str(each.get("resourceClaimName") or ""),
            str(each.get("resourceClaimTemplateName") or ""),
        )
        for each, _ in members(spec, "resourceClaims", "spec", problems)
    )
    made = (
        (str(each.get("name") or ""), str(each.get("resourceClaimName") or ""))
        for each, _ in members(status, "resourceClaimStatuses", "status", problems)
    )
    return PodClaims(claims, tuple(sorted(made))) if claims else NO_CLAIMS
