"""Files of a recorded provider's node groups (`*.groups.json` beside a recording), as the planner's values.

`{"groups": {id: {"cpu_milli", "memory_mib", "pods", "gpu", "arch", "price"}}}`; a group may also have its faults in the
recording (`stockout`, `fail_instances`, `atomic_fail`, `startup`). Weights were not recorded: the caller gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from cagrpc.config.yaml_text import parse_documents, read_text
from cagrpc.errors import InvalidConfiguration, did_you_mean
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


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A node group and its faults in the recording."""

    group: NodeGroup
    stockout: bool = False
    """IncreaseSize was answered RESOURCE_EXHAUSTED."""
    fail_instances: bool = False
    """Instances failed while being created."""
    atomic_fail: bool = False
    """Some instances were created, then all were deleted."""
    startup: bool = False
    """Nodes had the start-up taint for a while."""


def read_recorded_groups(path: Path, weights: Mapping[str, int] | None = None) -> tuple[RecordedGroup, ...]:
    """Return the groups in the file's order. `weights`: node group id -> weight of its provisioner, 0 by default.

    Raises InvalidConfiguration with all problems of the file, or where `weights` has a group that the file has not.
    """
    documents = parse_documents(read_text(path), str(path))
    if len(documents) != 1:
        raise InvalidConfiguration([f'{path}: has {len(documents)} documents, expected one with "groups"'])
    try:
        parsed = TypeAdapter(_File).validate_python(documents[0])
    except ValidationError as error:
        raise InvalidConfiguration(
            [f"{path}: {text}" for text in sentences(error, "", [*names_in_files(_File), *names_in_files(_Group)])],
        ) from error
    chosen = weights or {}
    refuse_unknown(path, chosen, parsed.groups)
    return tuple(_recorded(name, form, chosen.get(name, 0)) for name, form in parsed.groups.items())


def refuse_unknown(path: Path, wanted: Iterable[str], known: Collection[str]) -> None:
    """Raise InvalidConfiguration with a problem for each wanted id that the file does not have."""
    problems = [f'{path}: has no group "{name}"{did_you_mean(name, known)}' for name in wanted if name not in known]
    if problems:
        raise InvalidConfiguration(problems)


def with_weight(group: NodeGroup, weight: int) -> NodeGroup:
    """Return the group as one of the provisioner of that weight."""
    return replace(group, weight=weight, provisioner=f"weight-{weight}")


def _recorded(name: str, form: _Group, weight: int) -> RecordedGroup:
    gpu = {NVIDIA_GPU: form.gpu} if form.gpu else {}
    group = NodeGroup(
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
    return RecordedGroup(
        with_weight(group, weight),
        stockout=bool(form.stockout),
        fail_instances=bool(form.fail_instances),
        atomic_fail=bool(form.atomic_fail),
        startup=bool(form.startup),
    )
