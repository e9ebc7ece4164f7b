"""What pods claim of devices, as constraints that explanations can remove and change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from solver.explanation.model import ConstraintChange, ConstraintKind
from solver.explanation.pods import like, still_the_pod
from solver.model import DeviceClaim, DeviceRequest, PodClass, PodSpec, Problem
from solver.model.quantities import pluralize


def _requests(_: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    for each in classes:
        for request in dict.fromkeys(request for claim in each.spec.claims for request in claim.requests):
            asked = request.alternatives[0]
            counted = len(request.alternatives) == 1 and not asked.all
            before, after = (asked.count, 0) if counted else (None, None)
            yield ConstraintChange("device_request", each.example, request.name, before, after, each, request)


def _ask(spec: PodSpec, change: ConstraintChange) -> PodSpec:
    assert isinstance(change.part, DeviceRequest)
    request = change.part
    if change.after:
        fewer = replace(request, alternatives=(replace(request.alternatives[0], count=change.after),))
        claims = tuple(
            replace(claim, requests=tuple(fewer if each == request else each for each in claim.requests))
            for claim in spec.claims
        )
    else:
        claims = tuple(_without(claim, request) if request in claim.requests else claim for claim in spec.claims)
    return replace(spec, claims=tuple(claim for claim in claims if claim.requests))


def _without(claim: DeviceClaim, request: DeviceRequest) -> DeviceClaim:
    names = {request.name, *(f"{request.name}/{each.name}" for each in request.alternatives)}
    left = ((bound - names, attribute, bool(bound)) for bound, attribute in claim.match_attributes)
    return DeviceClaim(
        tuple(each for each in claim.requests if each != request),
        tuple((bound, attribute) for bound, attribute, named in left if bound or not named),
    )


def _offered(change: ConstraintChange) -> ConstraintChange | None:
    return None if change.before is None else still_the_pod(change)


def _attributes(_: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    for each in classes:
        for attribute in dict.fromkeys(a for claim in each.spec.claims for _, a in claim.match_attributes):
            yield ConstraintChange("match_attribute", each.example, attribute, pods=each)


def _unmatched(spec: PodSpec, change: ConstraintChange) -> PodSpec:
    return replace(
        spec,
        claims=tuple(
            replace(claim, match_attributes=tuple(each for each in claim.match_attributes if each[1] != change.key))
            for claim in spec.claims
        ),
    )


def _number(change: ConstraintChange) -> str:
    if change.before is None:
        return "devices"
    return pluralize(change.before, "device")


REQUEST = ConstraintKind(
    "device_request",
    _requests,
    lambda c: f"{like(c)} claim {_number(c)} by request {c.key}",
    lambda c: f"claim fewer devices by request {c.key} of {like(c)}: {c.after}, not {c.before}",
    edit_pods=_ask,
    offered=_offered,
)

KINDS = (
    ConstraintKind(
        "match_attribute",
        _attributes,
        lambda c: f"{like(c)} claim devices with one value of {c.key}",
        lambda c: f"drop the constraint on {c.key} from the claims of {like(c)}",
        edit_pods=_unmatched,
    ),
    REQUEST,
)
