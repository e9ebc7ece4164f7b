"""What is wrong with the plan of a case, by the scheduler's own word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.hunted.cases import Case, NotPlannedError, NotReadError, PlannedCase, name_of, planned, question
from cagrpc.offline.planning import stuck_unless_nominated
from solver.model import Status
from solver.model.capacity import without_room
from tests.oracle import KubeScheduler

TOLERATED: Mapping[str, str] = {
    "stuck, as the plan says": "nominations say where pods go and not who comes first, and some orders leave a planned"
    " pod without a node",
    "free to go, stuck": "no nomination steers who binds where: a plan of files may get stuck in an unlucky order, and"
    " says so",
    "free to go, stuck, for volumes or devices": "the same, and it does not say so: orders are not played with these",
    "free to go, stuck, unsaid": "the same in an order that is not among those that were played",
    "stuck, others instead": "a pod that is left out has the place of one like it: as many are served",
    "stuck, left out first": "no nomination keeps a pod that is left out from binding first, and constraints then keep"
    " others out: without it in the queue nobody gets stuck",
    "missed, others stuck": "with it in the plan, wherever it would be taken, others can get stuck; the reason says so",
    "undecided": "too many orders to try them all",
    "missed, for a volume of one node": "the scheduler lets pods of a ReadWriteOnce volume come to several nodes, where"
    " all but those of one wait for the volume for ever",
    "missed, for others' devices": "a plan holds for whatever devices the scheduler gives to each; who is left out"
    " finds some if others are not given them",
    "missed, beside DaemonSets": "what only a DaemonSet's pod lets in has to wait until that runs",
    "missed, DaemonSets compete": "of DaemonSets that a new node has no room, or no host port, for together any may"
    " come first, and nothing is left; the scheduler is asked about one order",
    "missed, a DaemonSet's pod is kept out": "one counts on each new node that its selector and tolerations allow, as"
    " in the cluster-autoscaler, also where a running pod's anti-affinity or another one's host port keeps it out",
}
"""Kinds that are counted and are no faults, and why."""


_TURNS = 8
"""How often it is asked whether pods get stuck: other orders are tried each time, that of the question first."""


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
    faults = _soundness(case, scheduler, found, answer)
    if missed := _missed(answer):
        kind = _why_missed(case, scheduler, found, missed)
        faults.append(Found(kind, _said_of_missed(found, missed), _features(case, list(missed))))
    if free and not faults:
        loose = scheduler.ask(question(case, found, nominated=False))
        if len(loose["stuck"]) > len(loose["stuck"][0]["instead"] if loose["stuck"] else ()):
            kind = "free to go, stuck"
            if not (found.plan.may_get_stuck or stuck_unless_nominated(found.problem, found.plan)):
                kind += ", for volumes or devices" if _have_volumes_or_devices(case) else ", unsaid"
            faults.append(Found(kind, _said(loose["stuck"])))
    return faults


def _have_volumes_or_devices(case: Case) -> bool:
    return any(each["spec"].get("volumes") or each["spec"].get("resourceClaims") for each in case["pending"])


def _soundness(case: Case, scheduler: KubeScheduler, found: PlannedCase, answer: Mapping[str, Any]) -> list[Found]:
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
        alone = scheduler.ask({**question(case, found, nominated=True), "unplaced": []})
        if not alone["stuck"]:
            return [Found("stuck, left out first", _said(stuck))]
        kind = "stuck, as the plan says" if found.plan.may_get_stuck else "stuck"
        return [Found(kind, _said(stuck), _features(case, [each["pod"] for each in stuck]))]
    return []


def _missed(answer: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    return {pod: nodes for pod, nodes in answer["takes"].items() if nodes}


def _why_missed(case: Case, scheduler: KubeScheduler, found: PlannedCase, missed: Mapping[str, Sequence[str]]) -> str:
    """Return the kind of fault, or of what is none."""
    if not missed.keys() & found.read.keys():
        return "missed, not read"
    bodies = {name_of(each): each for each in (*case["pending"], *case["bound"])}
    claims = Counter(claim for name in bodies for claim in _claims_of_one_node(case, bodies[name]))
    shared = {claim for claim, pods in claims.items() if pods > 1}
    if all(shared.intersection(_claims_of_one_node(case, bodies[name])) for name in missed):
        return "missed, for a volume of one node"
    reasons = _reasons(found)
    if all("may find no devices beside" in reasons.get(name, "") for name in missed):
        return "missed, for others' devices"
    if kind := _of_daemons(case, scheduler, found, missed):
        return kind
    asked = question(case, found, nominated=True)
    if all(_leaves_others_stuck(scheduler, asked, name, nodes) for name, nodes in missed.items()):
        return "missed, others stuck"
    certificate = found.plan.certificate
    proven = certificate.status is Status.OPTIMAL and not certificate.unserved_unproven
    return "missed beside a proof" if proven else "missed"


def _of_daemons(case: Case, scheduler: KubeScheduler, found: PlannedCase, missed: Mapping[str, Sequence[str]]) -> str:
    """Return the kind if it is for DaemonSets' pods that pods are left out, else nothing."""
    reasons = _reasons(found)
    beside = all("DaemonSet's pod" in reasons.get(name, "") for name in missed)
    if not case["daemonsets"]:
        return "missed, beside DaemonSets" if beside else ""

    def taken(of: Case) -> bool:
        answer = scheduler.ask(question(of, found, nominated=True))
        return not missed.keys().isdisjoint(_missed(answer))

    if beside or not taken({**case, "daemonsets": []}):
        return "missed, beside DaemonSets"
    compete = any(without_room(each, found.problem.daemon_sets) for each in found.problem.node_groups)
    if compete or not taken({**case, "daemonsets": case["daemonsets"][::-1]}):
        return "missed, DaemonSets compete"
    calm = [_without_anti_affinity(each) for each in case["bound"]]
    daemons = [_without_host_ports(each) for each in case["daemonsets"]]
    kept_out = not taken({**case, "bound": calm, "daemonsets": daemons})
    return "missed, a DaemonSet's pod is kept out" if kept_out else ""


def _without_anti_affinity(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    affinity = pod["spec"].get("affinity") or {}
    kept = {key: each for key, each in affinity.items() if key != "podAntiAffinity"}
    return {**pod, "spec": {**pod["spec"], "affinity": kept}}


def _without_host_ports(daemon_set: Mapping[str, Any]) -> Mapping[str, Any]:
    spec, template = daemon_set["spec"], daemon_set["spec"]["template"]
    containers = [{key: each for key, each in of.items() if key != "ports"} for of in template["spec"]["containers"]]
    return {
        **daemon_set,
        "spec": {**spec, "template": {**template, "spec": {**template["spec"], "containers": containers}}},
    }


def _leaves_others_stuck(scheduler: KubeScheduler, asked: Mapping[str, Any], missed: str, nodes: Sequence[str]) -> bool:
    """Return whether others can get stuck once the pod is in the plan, wherever a node takes it."""
    (pod,) = (each for each in asked["unplaced"] if name_of(each) == missed)
    others = [each for each in asked["unplaced"] if each is not pod]
    known = {each["metadata"]["name"]: each for each in asked["empty"]}
    for node in nodes:
        placements = [*asked["placements"], {"pod": pod, "node": node, "nominated": True}]
        opened = [known[node]] if node in known else []
        empty = [each for name, each in known.items() if name != node]
        more = {"nodes": [*asked["nodes"], *opened], "empty": empty, "unplaced": others}
        turned = ([*placements[turn:], *placements[:turn]] for turn in range(min(_TURNS, len(placements))))
        answers = (scheduler.ask({**asked, **more, "placements": each}) for each in turned)
        if not any(answer["refused"] or answer["stuck"] for answer in answers):
            return False
    return True


def _claims_of_one_node(case: Case, pod: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return (namespace, name) of the claims of a pod whose volume one node has at a time."""
    namespace = pod["metadata"]["namespace"]
    names = {each["persistentVolumeClaim"]["claimName"] for each in pod["spec"].get("volumes", ())
             if "persistentVolumeClaim" in each}  # fmt: skip
    return {
        (namespace, each["metadata"]["name"])
        for each in case.get("objects", ())
        if each["kind"] == "PersistentVolumeClaim" and each["metadata"]["namespace"] == namespace
        and each["metadata"]["name"] in names and each["spec"]["accessModes"] == ["ReadWriteOnce"]
    }  # fmt: skip


def _reasons(found: PlannedCase) -> Mapping[str, str]:
    """Return why pods are left out, by name."""
    return {
        f"{ref.namespace}/{ref.name}": "; ".join(each.reasons)
        for each in found.plan.unplaced
        for ref in found.assigned.unplaced.get(each.pod_class, ())
    }


def _said_of_missed(found: PlannedCase, missed: Mapping[str, Sequence[str]]) -> str:
    reasons = _reasons(found)
    return "; ".join(f"{pod} is taken by {', '.join(nodes)}: {reasons.get(pod, '')}" for pod, nodes in missed.items())


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
