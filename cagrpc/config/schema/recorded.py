"""Files of a recorded provider's node groups (`*.groups.json` beside a recording), as the planner's values.

`{"groups": {id: {"cpu_milli", "memory_mib", "pods", "gpu", "arch", "price"}}}`; a group may also have its faults in the
recording (`stockout`, `fail_instances`, `atomic_fail`, `startup`), which are passed over. Weights were not recorded:
they are those of the provisioner that names the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from cagrpc.config.yaml_text import read_documents
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import ARCH, DEFAULT_ZONE, INSTANCE_TYPE, NVIDIA_GPU, OS, ZONE
from cagrpc.fleet.fields import LabelValue
from cagrpc.forms import Form, names_in_files
from cagrpc.problems import sentences
from solver.model import CPU, MEMORY, PODS, NodeGroup

_MIB = 2**20
_Amount = Annotated[int, Field(ge=1, le=2**40)]


class _Group(Form):
    cpu_milli: _Amount
    memory_mib: _Amount
    pods: Annotated[int, Field(ge=1, le=100_000)]
    gpu: Annotated[int, Field(ge=0, le=10_000)] = 0
    arch: LabelValue = "amd64"
    price: Annotated[float, Field(ge=0, le=1_000_000)]
    """US dollars per hour."""
    stockout: bool | int = False
    fail_instances: bool | int = False
    atomic_fail: bool | int = False
    startup: bool | int = False


class _File(Form):
    groups: Annotated[dict[Annotated[str, Field(min_length=1, max_length=253)], _Group], Field(min_length=1)]


def read_recorded_groups(path: Path) -> tuple[NodeGroup, ...]:
    """Return the groups in the file's order. Raises InvalidConfiguration with all problems of the file."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise InvalidConfiguration([f'{path}: has {len(documents)} documents, expected one with "groups"'])
    try:
        parsed = TypeAdapter(_File).validate_python(documents[0])
    except ValidationError as error:
        raise InvalidConfiguration(
            [f"{path}: {text}" for text in sentences(error, "", [*names_in_files(_File), *names_in_files(_Group)])],
        ) from error
    return tuple(_recorded(name, form) for name, form in parsed.groups.items())


def _recorded(name: str, form: _Group) -> NodeGroup:
    gpu = {NVIDIA_GPU: form.gpu} if form.gpu else {}
    return NodeGroup(
        id=name,
        allocatable={CPU: form.cpu_milli, MEMORY: form.memory_mib * _MIB, PODS: form.pods, **gpu},
        price_usd_per_hour=form.price,
        # The labels of the recorded templates.
        labels={
            INSTANCE_TYPE: name,
            ARCH: form.arch,
            OS: "linux",
            ZONE: DEFAULT_ZONE,
            "example.com/node-group": name,
        },
        instance_type=name,
        zone=DEFAULT_ZONE,
    )
