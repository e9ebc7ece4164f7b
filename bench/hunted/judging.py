"""What is wrong with the plan of a case, by the scheduler's own word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.hunted.cases import Case, NotPlannedError, NotReadError, PlannedCase, name_of, planned, question
from solver.model import Status
from tests.oracle import KubeScheduler

TOLERATED: Mapping[str, str] = {
    "free to go, stuck": "no nomination steers who binds where: a plan of files may get stuck in an unlucky order",
    "stuck, others instead": "a pod that is left out has the place of one like it: as many are served",
    "undecided": "too many orders to try them all",
}
"""Kinds that are counted and are no faults, and why."""


@dataclass(frozen=True)
class Found:
    """One thing that is wrong: its kind, which constraints the pods have, and what was said."""

    kind: str
    detail: str
    about: str = ""


def judged(case: Case, scheduler: KubeScheduler, directory: Path, *, free: bool = True) -> list[Found]:
    """Plan the case and return what is wrong; with `free` also whether pods get stuck that nothing is nominated for."""
    try:
        found = planned(case, directory)
    except NotReadError as error:
        return [Found("not read", str(error))]
    except NotPlannedError as error:
        return [Found("no plan", str(error), type(error.__cause__).__name__)]
    answer = scheduler.ask(question(case, found, nominated=True))
    faults = _soundness(case, answer)
    faults += _completeness(case, found, answer)
    if free and not faults:
        loose = scheduler.ask(question(case, found, nominated=False))
        if len(loose["stuck"]) > len(loose["stuck"][0]["instead"] if loose["stuck"] else ()):
            faults.append(Found("free to go, stuck", _said(loose["stuck"])))
    return faults


def _soundness(case: Case, answer: Mapping[str, Any]) -> list[Found]:
    refused = answer["refused"]
    if refused and answer["undecided"]:
        return [Found("undecided", _said(refused))]
    if refused:
        return [
            Found(f"refused by {_plugins(refused)}", _said(refused), _features(case, [each["pod"] for each in refused]))
        ]
    if stuck := answer["stuck"]:
        if len(stuck) <= len(stuck[0]["instead"]):
            return [Found("stuck, others instead", _said(stuck))]
        return [Found("stuck", _said(stuck), _features(case, [each["pod"] for each in stuck]))]
    return []


def _completeness(case: Case, found: PlannedCase, answer: Mapping[str, Any]) -> list[Found]:
    missed = {pod: nodes for pod, nodes in answer["takes"].items() if nodes}
    if not missed:
        return []
    reasons = {
        f"{ref.namespace}/{ref.name}": "; ".join(each.reasons)
        for each in found.plan.unplaced
        for ref in found.assigned.unplaced.get(each.pod_class, ())
    }
    optimal = found.plan.certificate.status is Status.OPTIMAL and not found.plan.certificate.unserved_unproven
    kind = "missed beside a proof" if optimal else "missed"
    if not missed.keys() & found.read:
        kind = "missed, not read"
    said = (f"{pod} is taken by {', '.join(nodes)}: {reasons.get(pod, '')}" for pod, nodes in missed.items())
    return [Found(kind, "; ".join(said), _features(case, list(missed)))]


def _features(case: Case, pods: Sequence[str]) -> str:
    """Return the constraints that these pods have, or else others of the case."""
    bodies = [each for each in case["pending"] if name_of(each) in pods]
    if not bodies:
        return "DaemonSets"
    of_others = [each for each in (*case["pending"], *case["bound"]) if each not in bodies]
    mine = sorted({word for each in bodies for word in _words(each["spec"])})
    others = sorted({word for each in of_others for word in _words(each["spec"])})
    return "+".join(mine) or "others' " + ("+".join(others) or "requests")


def _words(spec: Mapping[str, Any]) -> Sequence[str]:
    found = []
    affinity = spec.get("affinity") or {}
    for key, word in (("nodeAffinity", "node"), ("podAffinity", "affinity"), ("podAntiAffinity", "anti")):
        for term, much in (
            ("requiredDuringSchedulingIgnoredDuringExecution", ""),
            ("preferredDuringSchedulingIgnoredDuringExecution", "-pref"),
        ):
            if (affinity.get(key) or {}).get(term):
                found.append(word + much)
    spreads = spec.get("topologySpreadConstraints") or ()
    found += ["spread-pref" if each.get("whenUnsatisfiable") == "ScheduleAnyway" else "spread" for each in spreads]
    if spec.get("nodeSelector"):
        found.append("node")
    if spec.get("resourceClaims"):
        found.append("claims")
    if any("persistentVolumeClaim" in each or "ephemeral" in each for each in spec.get("volumes") or ()):
        found.append("volumes")
    if any(port.get("hostPort") for each in spec["containers"] for port in each.get("ports") or ()):
        found.append("ports")
    return found


def _plugins(pods: Sequence[Mapping[str, Any]]) -> str:
    return "+".join(sorted({word for each in pods for word in each["plugin"].split("; ")}))


def _said(pods: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{each['pod']} {each.get('node', '')}: {each['plugin']}, {each['why']}" for each in pods)
