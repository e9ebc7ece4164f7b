"""Which devices the kube-scheduler may give a pod on a node: DynamicResources of Kubernetes 1.36 with its allocator,
one pod after the other, every choice, plain and slow. Shares nothing with `cagrpc` but the objects, and evaluates
selectors with cel-python as it comes. What controllers do at once is done (claims of templates are made).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celtypes import IntType
from celpy.evaluation import CELEvalError, CELFunction

from tests.support.scheduler.cluster import Machine, World, matches_terms

Given = frozenset[tuple[str, str, frozenset[str]]]
"""(claim, node, devices without admin access); the node is empty where the allocation can be used on all."""

IMPLICIT = "deviceclass.resource.kubernetes.io/"
_MOST_RESULTS = 32
_UNITS = {"Gi": 2**30, "Mi": 2**20}
_CEL = celpy.Environment()
_EXTENDED = "extended resources of "


class SearchEndedError(Exception):
    """The scheduler gives the pod up on a node, whatever else it could try."""


@dataclass(frozen=True)
class _Chosen:
    claim: int
    asked: Any
    names: frozenset[str]
    devices: tuple[str, ...]


class DeviceAllocations:
    def __init__(self, world: World) -> None:
        self._pods = world.of("Pod")
        self._classes = world.of("DeviceClass")
        self._claims = world.of("ResourceClaim")
        templates = world.of("ResourceClaimTemplate")
        self._of_pods: dict[str, list[str]] = {}
        for name, pod in self._pods.items():
            made = {each["name"]: each["resourceClaimName"] for each in pod["status"].get("resourceClaimStatuses", ())}
            mine = self._of_pods[name] = []
            for entry in pod["spec"].get("resourceClaims", ()):
                template = entry.get("resourceClaimTemplateName")
                claim = entry.get("resourceClaimName") or made.get(entry["name"]) or f"{entry['name']} of {name}"
                mine.append(claim)
                if template in templates and claim not in self._claims:
                    spec = templates[template]["spec"]["spec"]
                    self._claims[claim] = {"metadata": {"name": claim}, "spec": spec, "status": {}}
        self._slices = list(world.of("ResourceSlice").values())
        self._backed = {
            each["spec"]["extendedResourceName"]: name
            for name, each in sorted(self._classes.items())
            if "extendedResourceName" in each["spec"]
        } | {f"{IMPLICIT}{name}": name for name in self._classes}
        self._of_node: dict[str, dict[str, Any]] = {}
        """Devices that each node can use."""
        self._broken: set[str] = set()
        """Nodes with a pool that is incomplete or invalid."""
        self._matches = lru_cache(maxsize=None)(self._match)

    def start(self) -> Given:
        found = set()
        for name, claim in self._claims.items():
            if allocation := claim["status"].get("allocation"):
                ids = [_id(each) for each in allocation["devices"]["results"] if not each.get("adminAccess")]
                found.add((name, "", frozenset(ids)))
        return frozenset(found)

    def place(self, pod: str, node: Machine, running: list[str], given: Given) -> Iterator[Given]:
        """Yield what may be given once the pod has been placed; nothing where it may not go to the node. `running`
        are the pods there."""
        has = {claim: where for claim, where, _ in given}
        if not all(self._may_use(pod, claim, node, has) for claim in self._of_pods[pod]):
            return
        self._look_at(node)
        plugged, asked = self._extended(pod, node)
        if any(node.extended.get(name, 0) < self._requested(name, (*running, pod)) for name in plugged):
            return
        specs = {claim: self._claims[claim]["spec"]["devices"] for claim in self._of_pods[pod] if claim not in has}
        if asked:
            specs[f"{_EXTENDED}{pod}"] = {"requests": asked}
        taken = frozenset(device for _, _, devices in given for device in devices)
        try:
            ways = self._allocations(list(specs.values()), node, taken)
        except SearchEndedError:
            return
        for way in ways:
            found = set(given)
            for number, claim in enumerate(specs):
                mine = [each for each in way if each.claim == number]
                everything = {device for each in mine for device in each.devices}
                own = frozenset(d for each in mine if not each.asked.get("adminAccess") for d in each.devices)
                everywhere = everything and all(self._of_node[node.name][d]["everywhere"] for d in everything)
                found.add((claim, "" if everywhere else node.name, own))
            yield frozenset(found)

    # Pods

    def _may_use(self, pod: str, name: str, node: Machine, has: Mapping[str, str]) -> bool:
        claim = self._claims.get(name)
        if claim is None or "deletionTimestamp" in claim["metadata"]:
            return False
        owners = [each["uid"] for each in claim["metadata"].get("ownerReferences", ()) if each.get("controller")]
        if owners and owners != [self._pods[pod]["metadata"]["uid"]]:
            return False
        if allocation := claim["status"].get("allocation"):
            selector = allocation.get("nodeSelector")
            return selector is None or matches_terms(selector["nodeSelectorTerms"], node.labels, node.name)
        return has.get(name, "") in ("", node.name)

    def _extended(self, pod: str, node: Machine) -> tuple[list[str], list[Any]]:
        """Return the extended resources that the node's device plugins provide, and requests for the others."""
        plugged, asked = [], []
        for container in self._pods[pod]["spec"]["containers"]:
            for name, amount in sorted(container["resources"]["requests"].items()):
                if "/" not in name or not int(amount):
                    continue
                if node.extended.get(name) or name not in self._backed:
                    plugged.append(name)
                else:
                    exactly = {"deviceClassName": self._backed[name], "count": int(amount)}
                    asked.append({"name": f"{container['name']}-{name}", "exactly": exactly})
        return plugged, asked

    def _requested(self, name: str, pods: tuple[str, ...]) -> int:
        containers = [each for pod in pods for each in self._pods[pod]["spec"]["containers"]]
        return sum(int(each["resources"]["requests"].get(name, 0)) for each in containers)

    # Devices

    def _pools(self, node: str) -> tuple[dict[str, Any], bool]:
        """Return the devices that a node can use, and whether some pool is incomplete or invalid."""
        found: dict[str, Any] = {}
        broken = False
        pools = {(each["spec"]["driver"], each["spec"]["pool"]["name"]) for each in self._slices}
        for driver, pool in sorted(pools):
            slices = [
                e["spec"] for e in self._slices if (e["spec"]["driver"], e["spec"]["pool"]["name"]) == (driver, pool)
            ]
            newest = max(each["pool"]["generation"] for each in slices)
            slices = [each for each in slices if each["pool"]["generation"] == newest]
            mine = [each for each in slices if each.get("nodeName") == node or each.get("allNodes")]
            names = [device["name"] for each in mine for device in each["devices"]]
            if mine and (len(slices) != slices[0]["pool"]["resourceSliceCount"] or len(set(names)) < len(names)):
                broken = True
                continue
            for each in mine:
                for device in each["devices"]:
                    own = {**device, "driver": driver, "everywhere": bool(each.get("allNodes"))}
                    found[f"{driver}/{pool}/{device['name']}"] = own
        return found, broken

    def _look_at(self, node: Machine) -> None:
        if node.name not in self._of_node:
            found, broken = self._pools(node.name)
            new = {f"{node.name}/{n}": {**each, "everywhere": False} for n, each in enumerate(node.devices)}
            self._of_node[node.name] = {**new, **found}
            if broken:
                self._broken.add(node.name)

    def _match(self, class_name: str, selectors: tuple[str, ...], node: str, device: str) -> bool:
        of_class = [each["cel"]["expression"] for each in self._classes[class_name]["spec"].get("selectors", ())]
        return all(_holds(text, self._of_node[node][device]) for text in (*of_class, *selectors))

    # Allocations

    def _allocations(self, specs: list[Any], node: Machine, taken: frozenset[str]) -> list[tuple[_Chosen, ...]]:
        """Return all that the scheduler may choose for the claims. Raises SearchEndedError where it may give up."""
        requests = [(n, request) for n, spec in enumerate(specs) for request in spec["requests"]]
        for _, request in requests:
            for asked in request.get("firstAvailable") or [request["exactly"]]:
                if asked["deviceClassName"] not in self._classes:
                    raise SearchEndedError
                if asked.get("allocationMode") == "All":
                    if node.name in self._broken:
                        raise SearchEndedError
                    self._selected(asked, node, frozenset())
        return list(self._from(specs, requests, node, taken, ()))

    def _selected(self, asked: Any, node: Machine, unseen: frozenset[str]) -> list[str]:
        """Return the devices that a request matches, but for those that are not looked at. Raises SearchEndedError
        where a selector has no answer for a device of the node."""
        texts = tuple(each["cel"]["expression"] for each in asked.get("selectors", ()))
        found = []
        for device in self._of_node[node.name]:
            if device not in unseen and self._matches(asked["deviceClassName"], texts, node.name, device):
                has = self._of_node[node.name][device].get("capacity", {})
                wanted = asked.get("capacity", {}).get("requests", {})
                if all(name in has and _bytes(_amount(has[name])) >= _bytes(wanted[name]) for name in wanted):
                    found.append(device)
        return found

    def _from(
        self, specs: list[Any], requests: list[Any], node: Machine, taken: frozenset[str], chosen: tuple[_Chosen, ...]
    ) -> Iterator[tuple[_Chosen, ...]]:
        if not requests:
            yield chosen
            return
        claim, request = requests[0]
        for asked in request.get("firstAvailable") or [request["exactly"]]:
            names = frozenset({request["name"], f"{request['name']}/{asked.get('name', '')}"})
            found = False
            for devices in self._choices(specs[claim], claim, names, asked, node, taken, chosen):
                more = (*chosen, _Chosen(claim, asked, names, devices))
                for each in self._from(specs, requests[1:], node, taken, more):
                    found = True
                    yield each
            if found:
                return

    def _choices(
        self,
        spec: Any,
        claim: int,
        names: frozenset[str],
        asked: Any,
        node: Machine,
        taken: frozenset[str],
        chosen: tuple[_Chosen, ...],
    ) -> Iterator[tuple[str, ...]]:
        same = frozenset(d for each in chosen if each.claim == claim for d in each.devices)
        mine = frozenset(d for each in chosen for d in each.devices)
        in_use = same if asked.get("adminAccess") else taken | mine
        has = sum(len(each.devices) for each in chosen if each.claim == claim)
        if asked.get("allocationMode") == "All":
            everything = tuple(self._selected(asked, node, frozenset()))
            usable = [d for d in everything if d not in in_use and not self._keeps_away(node, d, asked)]
            if everything and has + len(everything) <= _MOST_RESULTS:
                if not self._agree(spec, claim, names, tuple(usable), node, chosen):
                    raise SearchEndedError
                if len(usable) == len(everything):
                    yield everything
            return
        if has + asked.get("count", 1) > _MOST_RESULTS:
            return
        selected = self._selected(asked, node, in_use)
        usable = [d for d in selected if not self._keeps_away(node, d, asked)]
        for some in combinations(usable, asked.get("count", 1)):
            if self._agree(spec, claim, names, some, node, chosen):
                yield some

    def _keeps_away(self, node: Machine, device: str, asked: Any) -> bool:
        kept = [each for each in self._of_node[node.name][device].get("taints", ()) if each["effect"] != "None"]
        tolerated = [each["key"] for each in asked.get("tolerations", ())]
        return any(each["key"] not in tolerated for each in kept)

    def _agree(
        self,
        spec: Any,
        claim: int,
        names: frozenset[str],
        more: tuple[str, ...],
        node: Machine,
        chosen: tuple[_Chosen, ...],
    ) -> bool:
        """Whether devices have one value of each attribute that the claim's constraints name."""
        mine = [(each.names, each.devices) for each in chosen if each.claim == claim]
        for constraint in spec.get("constraints", ()):
            bound = [
                device
                for of, devices in (*mine, (names, more))
                if not constraint.get("requests") or of & set(constraint["requests"])
                for device in devices
            ]
            values = [self._attribute(self._of_node[node.name][each], constraint["matchAttribute"]) for each in bound]
            if None in values or len(set(values)) > 1:
                return False
        return True

    def _attribute(self, device: Any, name: str) -> str | None:
        has = _attributes(device)
        domain, _, plain = name.partition("/")
        value = has.get(domain, {}).get(plain)
        return None if value is None else f"{type(value)} {value}"


def _id(result: Any) -> str:
    return "/".join(result[part] for part in ("driver", "pool", "device"))


def _bytes(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:]]


def _attributes(device: Any) -> dict[str, dict[str, Any]]:
    """Return the attributes by domain."""
    found: dict[str, dict[str, Any]] = {}
    for name, typed in device.get("attributes", {}).items():
        domain, _, plain = name.rpartition("/")
        (value,) = typed.values() if isinstance(typed, dict) else (typed,)
        found.setdefault(domain or device["driver"], {})[plain] = value
    return found


def _holds(text: str, device: Any) -> bool:
    described = {
        "driver": device["driver"],
        "attributes": _attributes(device),
        "capacity": {device["driver"]: {name: _bytes(_amount(of)) for name, of in device.get("capacity", {}).items()}},
    }
    try:
        return bool(_program(text).evaluate({"device": json_to_cel(described)}))
    except CELEvalError as error:
        raise SearchEndedError from error


def _amount(of: Any) -> str:
    return str(of["value"] if isinstance(of, dict) else of)


@cache
def _program(text: str) -> celpy.Runner:
    functions: dict[str, CELFunction] = {"quantity": lambda text: IntType(_bytes(str(text))), "compareTo": _compared}
    return _CEL.program(_CEL.compile(text), functions=functions)


def _compared(one: Any, other: Any) -> IntType:
    return IntType((one > other) - (one < other))
