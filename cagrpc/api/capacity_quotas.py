"""CapacityQuotas of the cluster-autoscaler's API autoscaling.x-k8s.io in Kubernetes' JSON shape: what the nodes that a
selector matches may have together. CA enforces them with `--capacity-quotas-enabled`, from 1.36 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.resources import amounts
from cagrpc.api.core.selectors import label_selector
from cagrpc.api.encoding.json_documents import Problems, mapping
from solver.model import Labels, Requirement, Resources
from solver.model.eligibility import matches_requirement

RESOURCE = "capacityquotas"
VERSIONS = ("v1beta1", "v1alpha1")
"""The newest first; CA 1.36 has the second alone. A cluster may serve both, or none."""
PATHS = tuple(f"/apis/autoscaling.x-k8s.io/{version}/{RESOURCE}" for version in VERSIONS)
LIMIT_PREFIX = "CapacityQuota/"
"""Begins the name of the limit that a quota is, as CA's own messages name it."""


@dataclass(frozen=True, slots=True)
class CapacityQuota:
    """A CapacityQuota: the most that the nodes it selects may have together."""

    maxima: Resources
    """In the resources' units, `nodes` among them."""
    selector: tuple[Requirement, ...] = ()
    """Conditions on a node's labels that must all hold; without any it counts all nodes."""

    def counts(self, labels: Labels) -> bool:
        """Return whether a node with these labels counts against it."""
        return all(matches_requirement(each, labels) for each in self.selector)


def read_capacity_quota(document: Mapping[str, Any], problems: Problems) -> CapacityQuota:
    """Read a quota. Its status is not looked at: CA writes it, which may be without the flag."""
    spec = mapping(document, "spec", "", problems)
    limits = mapping(spec, "limits", "spec", problems)
    maxima = amounts(limits, "resources", "spec.limits", problems, round_up=False)
    return CapacityQuota(maxima, label_selector(spec, "selector", "spec", problems) or ())
