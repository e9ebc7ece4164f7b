"""What happens in the demonstration, and when: values. It is played again and again; `cluster` plays it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, MIN_COUNT
from cagrpc.fleet.catalogue import NVIDIA_GPU
from solver.model import PodSpec, Toleration
from solver.model.quantities import amount

CYCLE_SECONDS = 360.0


@dataclass(frozen=True, slots=True)
class PlayedWorkload:
    """A ReplicaSet."""

    name: str
    spec: PodSpec
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scale:
    """A workload has so many replicas from now on."""

    workload: str
    replicas: int


@dataclass(frozen=True, slots=True)
class MachineStock:
    """So many machines of an instance type can be had from now on; None is as many as are asked for."""

    instance_type: str
    stock: int | None


@dataclass(frozen=True, slots=True)
class Scene:
    """What happens at a time of each cycle."""

    at_seconds: float
    what: str
    happens: tuple[Scale | MachineStock, ...]


_ONE_GPU = {NVIDIA_GPU: 1}


def _pods(cpu: str, memory: str, **more: int) -> PodSpec:
    asked = {"cpu": amount("cpu", cpu), "memory": amount("memory", memory), **more}
    tolerations = (Toleration(NVIDIA_GPU, "Exists"),) if NVIDIA_GPU in asked else ()
    return PodSpec(tuple(sorted(asked.items())), tolerations=tolerations)


WORKLOADS = (
    PlayedWorkload("web", _pods("900m", "1536Mi")),
    PlayedWorkload("api", _pods("2", "4Gi")),
    PlayedWorkload("report", _pods("3", "6Gi")),
    PlayedWorkload("search", _pods("6", "20Gi")),
    PlayedWorkload("training", _pods("4", "16Gi", **_ONE_GPU), {DEFAULT_GANG_LABEL: "training"}, {MIN_COUNT: "8"}),
    PlayedWorkload("render", _pods("4", "16Gi", **_ONE_GPU)),
    PlayedWorkload("database", _pods("80", "600Gi")),
)

SCENES = (
    Scene(0, "two services start", (Scale("web", 10), Scale("api", 5))),
    Scene(20, "web scales up", (Scale("web", 30),)),
    Scene(45, "a batch of reports is queued", (Scale("report", 10),)),
    Scene(80, "m7i.4xlarge is sold out, and search scales up", (MachineStock("m7i.4xlarge", 0), Scale("search", 6))),
    Scene(115, "six of the eight pods of a training job are created", (Scale("training", 6),)),
    Scene(130, "the training job is complete", (Scale("training", 8),)),
    Scene(165, "render asks for more GPUs than there may be", (Scale("render", 4),)),
    Scene(180, "a database asks for more than any node has", (Scale("database", 1),)),
    Scene(
        210,
        "m7i.4xlarge can be had again, and the reports are done",
        (MachineStock("m7i.4xlarge", None), Scale("report", 0)),
    ),
    Scene(225, "the training job is done", (Scale("training", 0),)),
    Scene(255, "the database is given up, and web scales down", (Scale("database", 0), Scale("web", 9))),
    Scene(300, "search scales down", (Scale("search", 1),)),
    Scene(330, "render is done", (Scale("render", 0),)),
)
