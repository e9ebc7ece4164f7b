"""A node group with GPUs, and pods and gangs that want them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from solver.model import PodSpec, Taint, TaintEffect, Toleration
from tests.support.controllers.planner import PlannerHarness
from tests.support.fleet import group

GPU = "nvidia.com/gpu"


def gpu_group(name: str, **more: Any) -> Any:
    made = group(name, price=1.0, taints=(Taint(GPU, TaintEffect.NO_SCHEDULE),), **more)
    return replace(made, allocatable={**made.allocatable, GPU: 1})


def with_gpu(cpu: int) -> PodSpec:
    return PodSpec((("cpu", cpu), (GPU, 1)), tolerations=(Toleration(GPU, "Exists"),))


def add_gang(harness: PlannerHarness, name: str, plain: int, gpus: int) -> None:
    uids = harness.add(plain + gpus, cpu=4000, gang=name)
    for uid in uids[:gpus]:
        harness.cluster.pods[uid].spec = with_gpu(4000)
