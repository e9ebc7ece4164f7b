"""Random small clusters with pods that claim devices."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.devices import DRIVER, claim_template, device_class
from tests.support.scheduler.cluster import World
from tests.support.scheduler.volume_strategies import group, node, pod

_NIC = "nic.example.com"
_ROOT = "resource.kubernetes.io/pcieRoot"
_NUMA = f"{DRIVER}/numa"
_POOL = "pool"
_BACKED = "example.com/gpu"
_GPU = f'device.attributes["{DRIVER}"]'
_PLAIN = (f'{_GPU}.model == "big"', f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0')
_SELECTORS = (
    *_PLAIN,
    f'{_GPU}.model in ["big", "old"]',
    f'{_GPU}.model != "big" || {_GPU}.numa == 1',
    f'"fast" in {_GPU} && {_GPU}.fast',
    f"{_GPU}.fast",
    f'device.driver == "{DRIVER}" && {_GPU}.numa < 1',
)


def _cel(*expressions: str) -> list[Any]:
    return [{"cel": {"expression": each}} for each in expressions]


class _Drawn:
    def __init__(self, draw: st.DrawFn, *, plain: bool) -> None:
        self.draw, self.plain = draw, plain
        self.objects: list[Any] = []
        self.published: dict[str, list[tuple[str, str, str]]] = {}
        """Devices of standing nodes: (driver, pool, name)."""
        self.everywhere: list[tuple[str, str, str]] = []

    def one_in(self, number: int) -> bool:
        return self.draw(st.integers(1, number)) == number

    def odd(self, number: int) -> bool:
        """Whether to draw something that is planned with care; never where the world is plain."""
        return not self.plain and self.one_in(number)

    def any(self, *of: Any) -> Any:
        return self.draw(st.sampled_from(of))

    def add(self, each: Any) -> Any:
        self.objects.append(each)
        return each

    # What there is

    def device(self, driver: str, name: str = "") -> Any:
        """Return a device as a slice publishes it; without a name as it is configured."""
        attributes: dict[str, Any] = {}
        if driver == DRIVER:
            attributes["model"] = self.any("big", "small", "small")
            attributes["numa"] = self.any(0, 0, 1)
            if self.odd(2):
                attributes["fast"] = self.any(True, False)
        if self.odd(2):
            attributes[_ROOT] = self.any("a", "b")
        capacity = {"memory": "80Gi" if attributes.get("model") == "big" else "20Gi"}
        if not name:
            return {"driver": driver, "attributes": attributes, "capacity": capacity}
        kinds = {str: "string", int: "int", bool: "bool"}
        found: dict[str, Any] = {"name": name, "capacity": {key: {"value": of} for key, of in capacity.items()}}
        found["attributes"] = {key: {kinds[type(of)]: of} for key, of in attributes.items()}
        if self.odd(6):
            found["taints"] = [{"key": "hot", "effect": self.any("NoSchedule", "NoExecute", "None")}]
        return found

    def publish(self, on: str, driver: str, most: int) -> None:
        """Add the slices of a driver; on no node: devices that all nodes can use."""
        names = [f"d{n}" for n in range(self.draw(st.integers(1, most)))]
        devices = [self.device(driver, name) for name in names]
        pool = on or "shared"
        generation, missing = self.any(1, 2), int(self.odd(10))
        if self.odd(12):
            devices.append({**devices[0]})
        parts = [devices[:1], devices[1:]] if len(devices) > 1 and self.one_in(3) else [devices]
        if self.one_in(6):
            parts.append([])
        for number, part in enumerate(parts):
            of = {"name": pool, "generation": generation, "resourceSliceCount": len(parts) + missing}
            self.slice(f"{driver}-{pool}-{number}", driver, on, of, part)
        if generation > 1 and self.one_in(2):
            old = {"name": pool, "generation": 1, "resourceSliceCount": 1}
            self.slice(f"{driver}-{pool}-old", driver, on, old, [self.device(driver, f"gone{n}") for n in range(2)])
        (self.published.setdefault(on, []) if on else self.everywhere).extend((driver, pool, name) for name in names)

    def slice(self, name: str, driver: str, on: str, pool: Any, devices: list[Any]) -> None:
        spec = {"driver": driver, "pool": pool, "devices": devices, **({"nodeName": on} if on else {"allNodes": True})}
        self.add(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name},
                "spec": spec,
            }
        )

    def standing(self) -> None:
        for number in range(self.draw(st.integers(0, 2))):
            name = f"n{number}"
            found = self.add(node(name, self.any(2, 3, 4, 6), **{_POOL: "standing"}))
            if self.one_in(5):
                found["status"]["allocatable"][_BACKED] = self.any("0", "1", "2")
            if not self.one_in(4):
                self.publish(name, DRIVER, 4)
            if self.odd(3):
                self.publish(name, _NIC, 2)
        if self.odd(8):
            self.publish("", DRIVER, 2)

    def groups(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        groups, devices = [], []
        for name in ("ga", "gb")[: self.draw(st.integers(1, 2))]:
            plugged = {_BACKED: self.any(1, 2)} if self.one_in(6) else {}
            price, most = self.any(1.0, 1.5, 4.0), self.any(1, 2)
            groups.append(group(name, self.any(2, 3, 4), price, most, {_POOL: name}, **plugged))
            for _ in range(self.draw(st.integers(0, 2))):
                of = self.device(self.any(DRIVER, DRIVER, DRIVER, DRIVER if self.plain else _NIC))
                devices.append({**of, "count": self.draw(st.integers(1, 2)), "node_groups": [name]})
        return tuple(groups), tuple(devices)

    def classes(self) -> None:
        backed = {"extendedResourceName": _BACKED} if self.one_in(2) else {}
        self.add(device_class("gpu", **backed))
        self.add(device_class("big", selectors=_cel(f'device.driver == "{DRIVER}"', _PLAIN[0])))
        self.add(device_class("nic", selectors=_cel(f'device.driver == "{_NIC}"')))
        self.add(device_class("any", selectors=[]))

    # What is asked for

    def asked(self) -> Any:
        found: dict[str, Any] = {"deviceClassName": self.any("gpu", "gpu", "big")}
        if self.odd(4):
            found["deviceClassName"] = self.any("nic", "nic", "any", "unknown")
        elif self.one_in(3):
            found["selectors"] = _cel(self.any(*(_PLAIN if self.plain else _SELECTORS)))
        if self.odd(6):
            found["allocationMode"] = "All"
        else:
            found["count"] = self.any(1, 1, 1, 2, 3)
        if self.odd(8):
            found["tolerations"] = [{"key": "hot", "operator": "Exists"}]
        if self.odd(8):
            found["capacity"] = {"requests": {"memory": self.any("20Gi", "40Gi")}}
        return found

    def claim_spec(self) -> Any:
        requests = []
        for name in ("r", "s")[: 2 if self.odd(3) else 1]:
            if self.odd(3):
                several = [{"name": each, **self.asked()} for each in ("first", "second")]
                requests.append({"name": name, "firstAvailable": several})
                continue
            asked = self.asked()
            if self.odd(8):
                asked["adminAccess"] = True
            requests.append({"name": name, "exactly": asked})
        found: dict[str, Any] = {"requests": requests}
        if self.odd(3):
            of = self.any([], [], ["r"], ["r/first"] if "firstAvailable" in requests[0] else ["r"])
            found["constraints"] = [{"matchAttribute": self.any(_NUMA, _ROOT), **({"requests": of} if of else {})}]
        return {"devices": found}

    def claim(self, name: str, spec: Any, *devices: tuple[str, str, str], on: str = "", owner: str = "") -> Any:
        metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        if owner:
            metadata["ownerReferences"] = [{"kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}]
        status: dict[str, Any] = {}
        if devices:
            results = [{"driver": d, "pool": p, "device": n, "request": "r"} for d, p, n in devices]
            status = {"allocation": {"devices": {"results": results}}}
        if devices and on:
            term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [on]}]}
            status["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
        return self.add(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": metadata,
                "spec": spec,
                "status": status,
            }
        )

    def running(self) -> list[str]:
        """Add pods that run; return the claims that others may share with them."""
        found = []
        for number, (where, devices) in enumerate(self.published.items()):
            free = devices if len(set(devices)) == len(devices) else []
            used = self.draw(st.lists(st.sampled_from(free), max_size=2, unique=True)) if free else []
            if not used:
                continue
            spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
            name = f"held{number}"
            claim = self.claim(name, spec, *used, on=where)
            if self.odd(5):
                for each in claim["status"]["allocation"]["devices"]["results"]:
                    each["adminAccess"] = True
            named = [{"name": "d", "resourceClaimName": name}]
            claim["status"]["reservedFor"] = [{"resource": "pods", "name": f"r{number}", "uid": f"uid-r{number}"}]
            self.add(pod(f"r{number}", 1, where, resourceClaims=named))
            found.append(name)
        if self.everywhere and self.one_in(2):
            spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
            self.claim("loose", spec, self.everywhere[0])
            found.append("loose")
        return found

    def named(self) -> list[str]:
        found = []
        for name in ("c0", "c1")[: self.draw(st.integers(0, 2))]:
            found.append(name)
            if self.odd(10):
                continue  # it is not there
            claim = self.claim(name, self.claim_spec())
            if self.odd(10):
                claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return found

    def pods(self, names: list[str], templates: list[str]) -> None:
        for number in range(self.draw(st.sampled_from([1, 2, 3, 3, 4]))):
            name = f"p{number}"
            entries: list[Any] = []
            made: list[Any] = []
            for template in self.draw(st.lists(st.sampled_from(templates), max_size=2)):
                entry = f"e{len(entries)}"
                entries.append({"name": entry, "resourceClaimTemplateName": template})
                if self.one_in(4):
                    made.append({"name": entry, "resourceClaimName": f"{name}-{entry}"})
                    (of,) = (each for each in self.objects if each["metadata"]["name"] == template)
                    self.claim(f"{name}-{entry}", of["spec"]["spec"], owner="other" if self.odd(10) else name)
            if names and self.one_in(3):
                entries.append({"name": "named", "resourceClaimName": self.any(*names)})
            where = {_POOL: self.any("standing", "ga")} if self.one_in(6) else {}
            each = self.add(pod(name, 1, created=self.any(0, 1, 2), resourceClaims=entries, nodeSelector=where))
            each["status"]["resourceClaimStatuses"] = made
            if self.one_in(6):
                resource = self.any(_BACKED, "deviceclass.resource.kubernetes.io/big")
                each["spec"]["containers"][0]["resources"]["requests"][resource] = self.any("1", "2")


@st.composite
def worlds_with_claims(draw: st.DrawFn, *, plain: bool = False) -> World:
    """Draw clusters with claims of every kind; `plain` ones have claims for a number of devices only, which are planned
    exactly."""
    drawn = _Drawn(draw, plain=plain)
    drawn.classes()
    drawn.standing()
    groups, devices = drawn.groups()
    templates = [f"t{n}" for n in range(draw(st.integers(1, 2)))]
    for name in templates:
        drawn.add(claim_template(name, spec=drawn.claim_spec()))
    names = [*drawn.running(), *drawn.named()]
    drawn.pods(names, templates)
    return World(tuple(drawn.objects), groups, devices)
