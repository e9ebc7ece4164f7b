"""Objects of resource.k8s.io without a cluster: what pods' claims come to, and what nodes have for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cagrpc.api.core.pods import PodClaims
from cagrpc.api.devices.cel import Expression
from cagrpc.api.devices.claims import ClaimObjects, DeviceDemand, demand
from cagrpc.api.devices.expressions import Expressions, read_expression
from cagrpc.api.devices.matching import NodeMatching, PublishedDevices, WantedDevices, by_node, taken_by
from cagrpc.api.devices.objects import ClaimSpec, DeviceClass, ResourceClaim, Slice
from cagrpc.api.devices.selectors import Matcher, Selector
from cagrpc.errors import InvalidInput


class ReadAtOnce(Expressions):
    """Any that is asked for is read then, whoever uses it."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[str, Expression | InvalidInput] = {}

    def found(self, text: str) -> Expression | InvalidInput:
        if text not in self._read:
            self._read[text] = read_expression(text)
        return self._read[text]


class DeviceObjects:
    """Objects of resource.k8s.io, at rest."""

    def __init__(
        self,
        claims: Iterable[ResourceClaim] = (),
        templates: Mapping[str, ClaimSpec] | None = None,
        classes: Iterable[DeviceClass] = (),
        slices: Iterable[Slice] = (),
    ) -> None:
        self.objects = ClaimObjects(
            {claim.key: claim for claim in claims}, templates or {}, {each.name: each for each in classes}
        )
        self.matcher = Matcher(ReadAtOnce())
        self._nodes = by_node(slices)
        self._selectors: dict[str, Selector] = {}
        self._attributes: set[str] = set()
        self._keys: set[str] = set()

    def demand(self, namespace: str, uid: str, pod: PodClaims) -> DeviceDemand:
        """Return what a pod's claims come to; its selectors are in use from now on."""
        found = demand(namespace, uid, pod, self.objects, self.matcher)
        self._selectors.update((each.key, each) for each in found.selectors)
        self._attributes |= found.attributes
        self._keys |= found.keys
        return found

    def matching(self) -> NodeMatching:
        """Return what nodes have for all selectors in use."""
        taken = frozenset(device for claim in self.objects.claims.values() for device in taken_by(claim))
        found = NodeMatching(
            self.matcher,
            WantedDevices(self._selectors.values(), self._attributes, self._keys),
            PublishedDevices(self._nodes or {}, taken),
        )
        found.shared_by_nodes()
        return found
