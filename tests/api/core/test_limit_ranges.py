"""LimitRanges, as the API server's plug-in LimitRanger takes them for new pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.api.core.limit_ranges import read_limit_range, refusals, with_defaults
from cagrpc.errors import InvalidInput
from tests.support.described import FromFiles, read


def limit_range(*items: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    metadata = {"name": "limits", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": list(items)}}


def resources(limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"limits": limits or {}, "requests": requests or {}}


CPU, MEMORY = "cpu", "memory"
_DEPLOYMENTS = ("[0] (Deployment default/web", "[1] (Deployment default/more")


@pytest.mark.parametrize(
    ("item", "container", "expected"),
    [
        pytest.param({"default": {CPU: 2}, "defaultRequest": {CPU: 1}}, {}, resources({CPU: 2}, {CPU: 1}), id="both"),
        pytest.param({"default": {CPU: 2}}, {}, resources({CPU: 2}, {CPU: 2}), id="a default limit is the request"),
        pytest.param({"max": {CPU: 4}}, {}, resources({CPU: 4}, {CPU: 4}), id="a maximum is the default limit"),
        pytest.param({"min": {CPU: 1}}, {}, resources({}, {CPU: 1}), id="a minimum is the default request"),
        pytest.param({"min": {CPU: 1}, "default": {CPU: 2}}, {}, resources({CPU: 2}, {CPU: 2}),
                     id="the default limit comes before the minimum"),
        pytest.param({"default": {CPU: 2}, "defaultRequest": {CPU: 1}}, resources({CPU: 4}),
                     resources({CPU: 4}, {CPU: 4}), id="a limit without a request is one"),
        pytest.param({"default": {CPU: 2}, "defaultRequest": {CPU: 1}}, resources({}, {CPU: "500m"}),
                     resources({CPU: 2}, {CPU: "500m"}), id="a request gets a limit"),
        pytest.param({"default": {MEMORY: "1Gi"}}, resources({}, {CPU: 1}),
                     resources({MEMORY: "1Gi"}, {CPU: 1, MEMORY: "1Gi"}), id="each resource by itself"),
    ],
)  # fmt: skip
def test_what_containers_get(item: dict[str, Any], container: dict[str, Any], expected: dict[str, Any]) -> None:
    problems: list[str] = []
    found = read_limit_range(limit_range({"type": "Container", **item}), problems)
    assert problems == []
    spec = {"containers": [{"resources": container}], "initContainers": [{"resources": container, "name": "i"}]}
    changed = with_defaults(spec, (found,))
    assert changed["containers"] == [{"resources": expected}]
    assert changed["initContainers"] == [{"resources": expected, "name": "i"}]
    assert with_defaults(changed, (found,)) == changed


@pytest.mark.parametrize("malformed", ["text", {"resources": 7}, {"resources": {"limits": []}}])
def test_what_is_malformed_stays_for_who_tells_of_it(malformed: Any) -> None:
    found = read_limit_range(limit_range({"type": "Container", "default": {CPU: 2}}), [])
    assert with_defaults({"containers": [malformed]}, (found,)) == {"containers": [malformed]}
    assert with_defaults({"containers": malformed}, (found,)) == {"containers": malformed}


def test_of_two_limit_ranges_the_first_that_has_a_default_gives_it() -> None:
    first, second = (
        read_limit_range(limit_range({"type": "Container", "default": {CPU: cpu}, "max": {MEMORY: "1Gi"}}), [])
        for cpu in (1, 2)
    )
    (container,) = with_defaults({"containers": [{}]}, (first, second))["containers"]
    assert container["resources"] == resources({MEMORY: "1Gi", CPU: 1}, {MEMORY: "1Gi", CPU: 1})


@pytest.mark.parametrize(
    ("item", "spec", "expected"),
    [
        ({"max": {CPU: 1}}, {"containers": [resources({CPU: 2})]},
         ["spec.containers[0]: the cpu limit of 2 is more than the maximum of 1 per container"]),
        ({"max": {CPU: 1}}, {"containers": [resources({}, {CPU: 1})]},
         ["spec.containers[0]: there is no cpu limit, for the maximum of 1 per container"]),
        ({"min": {CPU: "100m"}}, {"containers": [resources({CPU: 1}, {CPU: "50m"})]},
         ["spec.containers[0]: the cpu request of 50m is less than the minimum of 100m per container"]),
        ({"min": {CPU: "100m"}}, {"containers": [resources()], "initContainers": [resources()]},
         ["spec.containers[0]: there is no cpu request, for the minimum of 100m per container",
          "spec.initContainers[0]: there is no cpu request, for the minimum of 100m per container"]),
        ({"maxLimitRequestRatio": {CPU: 2}},
         {"containers": [resources({CPU: 4}, {CPU: 1}), resources({CPU: 2}, {CPU: 1})]},
         ["spec.containers[0]: the cpu limit of 4 is more than 2 times the request of 1 per container"]),
        ({"maxLimitRequestRatio": {CPU: 2}}, {"containers": [resources({}, {CPU: 1}), resources()]},
         ["spec.containers[0]: there is no cpu limit, for a limit of at most 2 times the request per container",
          "spec.containers[1]: there is no cpu request, for a limit of at most 2 times the request per container"]),
        ({"type": "Pod", "max": {CPU: 3}}, {"containers": [resources({CPU: 2}), resources({CPU: 2})]},
         ["spec: the cpu limit of 4 is more than the maximum of 3 per pod"]),
        ({"type": "Pod", "max": {CPU: 4}}, {"containers": [resources({CPU: 2}), resources({CPU: 2})]}, []),
        ({"type": "Pod", "max": {CPU: 3}},
         {"containers": [resources({CPU: 2})], "initContainers": [resources({CPU: 4})]},
         ["spec: the cpu limit of 4 is more than the maximum of 3 per pod"]),
        ({"type": "Pod", "max": {CPU: 3}},
         {"containers": [resources({CPU: 4})], "resources": resources({CPU: 3}, {CPU: 3})}, []),
        ({"type": "Pod", "min": {CPU: 3}}, {"containers": [resources({}, {CPU: 1})], "overhead": {CPU: 2}},
         ["spec: the cpu request of 1 is less than the minimum of 3 per pod"]),
        ({"type": "PersistentVolumeClaim", "min": {CPU: 3}}, {"containers": [resources({}, {CPU: 1})]}, []),
    ],
)  # fmt: skip
def test_what_is_refused(item: dict[str, Any], spec: dict[str, Any], expected: list[str]) -> None:
    (found,) = (read_limit_range(limit_range({"type": "Container", **item}), []) for _ in range(1))
    containers: dict[str, Any] = {
        name: [{"resources": each} for each in spec[name]] for name in ("containers", "initContainers") if name in spec
    }
    said = list(refusals({**spec, **containers}, "spec", (found,)))
    assert said == [f"{each} (LimitRange default/limits)" for each in expected]


def _of_files(folder: Path, *objects: dict[str, Any]) -> FromFiles:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return read([path])


def _pod(namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    said = {"name": "p", "namespace": namespace, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": said, "spec": {"containers": [{"name": "c"}]}}


def _deployment(container: dict[str, Any]) -> dict[str, Any]:
    spec = {"selector": {}, "template": {"spec": {"containers": [{"name": "c", "resources": container}]}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def test_new_pods_of_files_are_defaulted_by_the_limit_ranges_of_their_namespace(tmp_path: Path) -> None:
    limits = limit_range({"type": "Container", "default": {CPU: 2}, "defaultRequest": {CPU: 1}})
    found = _of_files(tmp_path, _deployment({}), _pod(), _pod("other"), limits)
    assert {key: dict(each.spec.requests) for key, each in found.pods.items()} == {
        "default/web": {CPU: 1000},
        "default/p": {CPU: 1000},
        "other/p": {},
    }
    assert not [each for each in found.warnings if "LimitRange" in each]


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_pods_of_a_server_have_been_admitted(tmp_path: Path, field: str) -> None:
    limits = limit_range({"type": "Container", "default": {CPU: 2}, "min": {MEMORY: "1Gi"}})
    (found,) = _of_files(tmp_path, _pod(**{field: "1"}), limits).pods.values()
    assert found.spec.requests == ()


def test_daemon_sets_are_defaulted_too(tmp_path: Path) -> None:
    daemons = {**_deployment({}), "kind": "DaemonSet"}
    found = _of_files(tmp_path, daemons, _pod(), limit_range({"type": "Container", "default": {CPU: 2}}))
    assert [dict(each.requests) for each in found.daemon_sets] == [{CPU: 2000}]


def test_pods_that_the_api_server_would_refuse_are_told_with_their_place(tmp_path: Path) -> None:
    limits = limit_range({"type": "Container", "max": {CPU: 2}, "default": {CPU: 1}}, {"type": "Pod", "max": {CPU: 1}})
    more = {**_deployment({"requests": {CPU: 2}}), "metadata": {"name": "more"}}
    with pytest.raises(InvalidInput) as raised:
        _of_files(tmp_path, _deployment({"limits": {CPU: 4}}), more, limits)
    first, second = (f"{tmp_path}/all.yaml{each}): spec.template.spec" for each in _DEPLOYMENTS)
    of = "(LimitRange default/limits)"
    assert str(raised.value).splitlines() == [
        f"{first}.containers[0]: the cpu limit of 4 is more than the maximum of 2 per container {of}",
        f"{first}: the cpu limit of 4 is more than the maximum of 1 per pod {of}",
        f"{second}: the cpu request of 2 is more than the maximum of 1 per pod {of}",
        f"{second}.containers[0].resources.requests.cpu: 2 is more than the limit of 1 (with what admission adds)",
    ]


def test_what_is_wrong_in_a_limit_range_is_told_with_its_place(tmp_path: Path) -> None:
    limits = limit_range({"type": "Container", "max": {CPU: "x"}, "default": 7, "maxLimitRequestRatio": {CPU: "y"}})
    with pytest.raises(InvalidInput) as raised:
        _of_files(tmp_path, _pod(), limits)
    said = str(raised.value).splitlines()
    assert len(said) == 3
    assert {each.split(": ")[1] for each in said} == {
        "spec.limits[0].max.cpu",
        "spec.limits[0].maxLimitRequestRatio.cpu",
        "spec.limits[0].default",
    }
