"""The registry of backends: each adds its fields to the configuration file, and the fields that are written choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cagrpc.backends import registry
from cagrpc.backends.plugin import BackendContext, BackendPlugin, Configured, Inventory, OpenBackend
from cagrpc.config.load import parse_settings
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.forms import Form
from cagrpc.problems import sentences
from tests.support.fleet import FakeClock

CONFIGURATION = "provisioners: [{name: a, node_groups: [{id: g, instance_type: m7i.large}]}]\n"


class _CloudFields(Form):
    cloud: str = "eu"


class _CloudNodesField(Form):
    cloud_nodes: bool = False


class _CloudSettings:
    def open(self, context: BackendContext) -> OpenBackend:
        raise NotImplementedError


class _Cloud(BackendPlugin):
    name = "cloud"
    backend_fields = _CloudFields
    kubernetes_fields = _CloudNodesField

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        return Configured(_CloudSettings())


BOTH = (*registry.BACKENDS, _Cloud())


def test_every_name_is_there_once() -> None:
    names = [plugin.name for plugin in registry.BACKENDS]
    assert len(names) == len(set(names))


def test_the_fields_that_are_written_choose_the_backend() -> None:
    section = registry.backend_fields(BOTH)
    assert registry.chosen(section(), BOTH) is BOTH[0]
    assert registry.chosen(section.model_validate({"simulated": {}}), BOTH) is BOTH[0]
    assert registry.chosen(section.model_validate({"cloud": "us"}), BOTH) is BOTH[-1]
    assert registry.kubernetes_fields(BOTH).model_fields.keys() == {"simulated_nodes", "cloud_nodes"}


def test_fields_of_two_backends_are_a_problem_with_its_place() -> None:
    with pytest.raises(ValidationError) as raised:
        registry.backend_fields(BOTH).model_validate({"simulated": {}, "cloud": "us"})
    assert sentences(raised.value, "backend", ()) == [
        "backend: found fields of simulated and cloud, expected those of one backend"
    ]


def test_a_backend_is_opened_from_settings_with_its_pages(tmp_path: Path) -> None:
    settings = parse_settings(CONFIGURATION + "backend: {simulated: {g: {stock: 3}}}", "c.yaml", tmp_path)
    opened = settings.backend.open(BackendContext(tmp_path, FakeClock()))
    try:
        assert opened.backend.list_instances().instances == ()
        behaviours: Any = opened.pages["/simulation"].get()
        assert behaviours["g"]["stock"] == 3
        assert (tmp_path / "simulated.sqlite").exists()
    finally:
        opened.close()


def test_names_to_check_against_are_those_of_groups_and_types() -> None:
    settings = parse_settings(CONFIGURATION, "c.yaml", Path())
    assert Inventory(settings.groups, embedded_catalogue()).names >= {"g", "m7i.large", "c7i.large"}
