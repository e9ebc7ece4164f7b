"""The catalogue of instance types and their offerings by zone, capacity type and price, read from CSV.

Types and offerings are plain values in the planner's units; provisioners are expanded over them in `provisioners`.
Columns are those of the embedded catalogue (`cagrpc/data/catalog/`), and optionally `zone`, `capacity_type`,
`available`, `allocatable_ephemeral_storage_mib`, and `attachable-volumes-csi-` with the name of a CSI driver: how many
of its volumes may be attached to a new node beside its own. Labels are the well-known ones of Kubernetes and of
Karpenter's AWS provider.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from pathlib import Path

from cagrpc.errors import InvalidConfiguration
from cagrpc.problems import read_text
from solver.model import ATTACHABLE_VOLUMES, CPU, MEMORY, PODS, Labels, Resources
from solver.model.quantities import pluralize

ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
_AWS = "karpenter.k8s.aws/instance-"
GPU_NAME = f"{_AWS}gpu-name"
WELL_KNOWN_LABELS = frozenset(
    {ARCH, OS, INSTANCE_TYPE, ZONE, CAPACITY_TYPE}
    | {_AWS + name for name in ("category", "family", "generation", "size", "cpu", "memory", "gpu-name", "gpu-count")},
)
"""Labels that only instance types and offerings define; a provisioner cannot add them."""

NVIDIA_GPU = "nvidia.com/gpu"
GPU_VENDORS: Mapping[str, str] = {
    NVIDIA_GPU: "nvidia",
    "habana.ai/gaudi": "intel-gaudi",
    "gpu.intel.com/xe": "intel",
    "amd.com/gpu": "amd",
    "microsoft.com/directx": "directx",
}
"""The resources that CA knows as GPUs (GPUVendorResourceNames), and what a node's GPU is called where nothing says
more."""
EPHEMERAL_STORAGE = "ephemeral-storage"
DEFAULT_ZONE = "zone-a"
"""Where the catalogue has no zone."""
DEFAULT_CAPACITY_TYPE = "on-demand"

_MIB = 2**20
_ACCELERATORS = (
    # (how a gpu_name begins, the resource its device plugin offers)
    ("radeon", "amd.com/gpu"),
    ("instinct", "amd.com/gpu"),
    ("amd", "amd.com/gpu"),
    ("gaudi", "habana.ai/gaudi"),
    ("habana", "habana.ai/gaudi"),
    ("inferentia", "aws.amazon.com/neuron"),
    ("trainium", "aws.amazon.com/neuron"),
)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type. Limits count `capacity`; pods may use `allocatable`."""

    name: str
    arch: str
    capacity: Resources
    allocatable: Resources
    labels: Labels
    """The type's own; zone and capacity type are the offering's."""
    gpu_name: str = ""


@dataclass(frozen=True, slots=True)
class Offering:
    """An instance type in one zone under one capacity type, at a price. `available` bounds how many can be ordered;
    None for no known bound."""

    instance_type: InstanceType
    price_usd_per_hour: float
    zone: str = DEFAULT_ZONE
    capacity_type: str = DEFAULT_CAPACITY_TYPE
    available: int | None = None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its nodes before a provisioner adds its own."""
        return {**self.instance_type.labels, ZONE: self.zone, CAPACITY_TYPE: self.capacity_type}


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every offering, in the file's order, and every instance type by name."""

    offerings: tuple[Offering, ...]
    instance_types: Mapping[str, InstanceType]

    def offerings_of(self, instance_type: str) -> tuple[Offering, ...]:
        return tuple(offering for offering in self.offerings if offering.instance_type.name == instance_type)


def gpu_resource(gpu_name: str) -> str:
    """Return the extended resource of a GPU by its name; NVIDIA's by default."""
    return next((resource for prefix, resource in _ACCELERATORS if gpu_name.startswith(prefix)), NVIDIA_GPU)


@cache
def embedded_catalogue() -> Catalogue:
    """Return the catalogue embedded in cagrpc: on-demand EC2 instance types of us-east-1."""
    name = "aws-us-east-1.csv"
    return parse_catalogue((files("cagrpc") / "data" / "catalog" / name).read_text(encoding="utf-8"), name)


def read_catalogue(path: Path) -> Catalogue:
    """Read a CSV file. Raises InvalidConfiguration with every error."""
    return parse_catalogue(read_text(path), str(path))


def parse_catalogue(text: str, name: str) -> Catalogue:
    """Parse CSV text; `name` stands for the file in errors. Raises InvalidConfiguration with every error, each as
    `name:line: column: what was found, what would be right`."""
    problems: list[str] = []
    offerings: list[Offering] = []
    types: dict[str, InstanceType] = {}
    places: dict[tuple[str, str, str], int] = {}
    for line, cells in _rows(text, name, problems):
        row = _Row(f"{name}:{line}", cells, problems)
        offering = row.offering()
        if offering is None:
            continue
        instance_type = offering.instance_type
        first = types.setdefault(instance_type.name, instance_type)
        if first != instance_type:
            row.problem("instance_type", f'"{instance_type.name}" has different values above; only zone, '
                        "capacity_type, available and usd_per_hour may differ between rows of one type")  # fmt: skip
            continue
        place = (instance_type.name, offering.zone, offering.capacity_type)
        if place in places:
            row.problem("instance_type", f"{'/'.join(place)} is already offered in line {places[place]}")
            continue
        places[place] = line
        offerings.append(Offering(first, offering.price_usd_per_hour, *place[1:], available=offering.available))
    if not offerings and not problems:
        problems.append(f"{name}: has no instance types; expected a row for each below the header")
    if problems:
        raise InvalidConfiguration(problems)
    return Catalogue(tuple(offerings), types)


_REQUIRED = (
    "instance_type", "arch", "category", "family", "generation", "size", "vcpu", "memory_mib", "gpu_name",
    "allocatable_cpu_milli", "allocatable_memory_mib", "allocatable_pods", "allocatable_gpu", "usd_per_hour",
)  # fmt: skip
_OPTIONAL = ("zone", "capacity_type", "available", "allocatable_ephemeral_storage_mib")


def _rows(text: str, name: str, problems: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows under a valid header with their line numbers; errors are added to `problems`."""
    reader = csv.reader(StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        if not any(header):
            problems.append(f"{name}:1: is empty; expected the columns {', '.join(_REQUIRED)}")
            return
        if not set(header) & set(_REQUIRED):
            problems.append(f"{name}: is not a catalogue; expected CSV with the columns {', '.join(_REQUIRED)}")
            return
        if faults := list(_header_faults(header)):
            problems.extend(f"{name}:1: {fault}" for fault in faults)
            return
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                problems.append(
                    f"{name}:{reader.line_num}: has {pluralize(len(cells), 'cell')}, expected {len(header)}"
                )
                continue
            yield reader.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        problems.append(f"{name}:{reader.line_num}: is not CSV: {error}")


def _header_faults(header: list[str]) -> Iterator[str]:
    for column in dict.fromkeys(header):
        if column and header.count(column) > 1:
            yield f"{column}: the column occurs twice"
    absent = [column for column in (*_REQUIRED, *_OPTIONAL) if column not in header]
    for column in header:
        if column in (*_REQUIRED, *_OPTIONAL):
            continue
        # Unknown columns are allowed, but one that resembles a known column is a typo.
        if near := difflib.get_close_matches(column, absent, n=1, cutoff=0.8):
            yield f'{column}: unknown column; did you mean "{near[0]}"?'
    for column in absent:
        if column in _REQUIRED:
            yield f"{column}: the column is missing"


_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_ARCHITECTURES = ("amd64", "arm64", "386", "arm", "ppc64le", "riscv64", "s390x")
_WHOLE = re.compile(r"[0-9]{1,18}")


class _Row:
    """Converts the cells of one row to values and collects its errors."""

    def __init__(self, place: str, cells: Mapping[str, str], problems: list[str]) -> None:
        self._place, self._cells, self._problems = place, cells, problems
        self._faultless = True

    def problem(self, column: str, text: str) -> None:
        self._problems.append(f"{self._place}: {column}: {text}")
        self._faultless = False

    def offering(self) -> Offering | None:
        """Return the offering; None where any cell is invalid."""
        name = self._word("instance_type")
        arch = self._word("arch")
        if arch and arch not in _ARCHITECTURES:
            self.problem("arch", f'found "{arch}", expected one of {", ".join(_ARCHITECTURES)}')
        vcpu = self._whole("vcpu", 1, 100_000)
        memory_mib = self._whole("memory_mib", 1, 2**32)
        cpu_milli = self._whole("allocatable_cpu_milli", 1, vcpu * 1000, "vcpu x 1000")
        allocatable_mib = self._whole("allocatable_memory_mib", 1, memory_mib, "memory_mib")
        pods = self._whole("allocatable_pods", 1, 100_000)
        gpus = self._whole("allocatable_gpu", 0, 10_000)
        gpu_name = self._word("gpu_name", optional=True)
        generation = self._cells["generation"] and str(self._whole("generation", 0, 10_000))
        labels = {
            ARCH: arch,
            OS: "linux",
            INSTANCE_TYPE: name,
            f"{_AWS}category": self._word("category", optional=True),
            f"{_AWS}family": self._word("family", optional=True),
            f"{_AWS}generation": generation,
            f"{_AWS}size": self._word("size", optional=True),
            f"{_AWS}cpu": str(vcpu),
            f"{_AWS}memory": str(memory_mib),
            GPU_NAME: gpu_name,
            # The catalogue lists fractions of a GPU as 0, a wrong count: omit the label.
            f"{_AWS}gpu-count": str(gpus) if gpus else "",
        }
        price = self._price()
        zone = self._word("zone", optional=True) or DEFAULT_ZONE
        capacity_type = self._word("capacity_type", optional=True) or DEFAULT_CAPACITY_TYPE
        available = self._whole("available", 0, 10**9) if self._cells.get("available") else None
        storage = {}
        if self._cells.get("allocatable_ephemeral_storage_mib"):
            storage = {EPHEMERAL_STORAGE: self._whole("allocatable_ephemeral_storage_mib", 0, 2**40) * _MIB}
        volumes = {
            column: self._whole(column, 0, 10_000)
            for column, cell in self._cells.items()
            if column.startswith(ATTACHABLE_VOLUMES) and cell
        }
        if not self._faultless:
            return None
        gpu = {gpu_resource(gpu_name): gpus} if gpus else {}
        return Offering(
            InstanceType(
                name,
                arch,
                capacity={CPU: vcpu * 1000, MEMORY: memory_mib * _MIB, PODS: pods, **gpu, **storage},
                allocatable={CPU: cpu_milli, MEMORY: allocatable_mib * _MIB, PODS: pods, **gpu, **storage, **volumes},
                labels={key: value for key, value in labels.items() if value},
                gpu_name=gpu_name,
            ),
            price,
            zone,
            capacity_type,
            available,
        )

    def _word(self, column: str, *, optional: bool = False) -> str:
        found = self._cells.get(column, "")
        if not found and optional:
            return ""
        if not _LABEL_VALUE.fullmatch(found):
            self.problem(column, f'found "{found[:80]}", expected letters, digits, ".", "_" or "-", at most 63')
        return found

    def _whole(self, column: str, least: int, most: int, most_is: str = "") -> int:
        """Return the cell as an integer. Where it is invalid, add a problem and return `most`, so that an invalid bound
        causes no second problem."""
        found = self._cells[column]
        # int() also reads "1_000" and other scripts' digits.
        if not _WHOLE.fullmatch(found):
            self.problem(column, f'found "{found[:80]}", expected a whole number from {least} to {most}')
        elif not least <= int(found) <= most:
            bound = f"{most} ({most_is})" if most_is else str(most)
            self.problem(column, f"found {found}, expected a whole number from {least} to {bound}")
        else:
            return int(found)
        return most

    def _price(self) -> float:
        found = self._cells["usd_per_hour"]
        try:
            price = float(found) if "_" not in found else math.nan
        except ValueError:
            price = math.nan
        if not 0 <= price <= 1_000_000:  # false for NaN as well
            self.problem("usd_per_hour", f'found "{found[:80]}", expected US dollars per hour, from 0 to 1000000')
        return price
