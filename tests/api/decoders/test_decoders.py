"""Whatever others write, every decoder answers with a value or with InvalidInput, and soon. `fuzz` looks for longer."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext, suppress
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.view.objects import PodReader, PodStage
from cagrpc.errors import InvalidInput, NotImplementedByDesign
from cagrpc.kube.client.envelopes import identity
from tests.api.decoders import hostile
from tests.api.decoders.registry import Decoder, decoders, item_of
from tests.support.controllers.cluster_objects import Fed
from tests.support.examples import examples
from tests.support.steps import steps

_MOST_SECONDS = 20.0
"""Of the processor, on any machine. A decoder takes milliseconds; what grows faster than its input takes minutes."""
_DECODERS = decoders()
_NO_ANSWERS = (NotImplementedByDesign, InvalidInput)
"""What the provider may say to a request that says next to nothing."""


def _read(decoder: Decoder, data: bytes) -> None:
    began = time.thread_time()
    with suppress(*decoder.errors):
        decoder.read(data)
    assert time.thread_time() - began < _MOST_SECONDS


@pytest.mark.parametrize("decoder", _DECODERS, ids=lambda each: each.name)
def test_the_seeds_are_read(decoder: Decoder) -> None:
    """Or the properties would look at nothing but refusals."""
    for data in decoder.raw_seeds():
        with nullcontext() if decoder.errors == (InvalidInput,) else suppress(*_NO_ANSWERS):
            decoder.read(data)


@pytest.mark.parametrize("decoder", _DECODERS, ids=lambda each: each.name)
@examples(60)
@given(chooser=st.randoms(use_true_random=False))
def test_plausible_objects_with_hostile_values_fail_nothing(decoder: Decoder, chooser: random.Random) -> None:
    seed = chooser.choice(decoder.seeds)
    _read(decoder, hostile.changed(seed, chooser))


@pytest.mark.parametrize("decoder", _DECODERS, ids=lambda each: each.name)
@examples(30)
@given(data=st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_fail_nothing(decoder: Decoder, data: bytes) -> None:
    _read(decoder, data)


@examples(200)
@given(chooser=st.randoms(use_true_random=False))
def test_a_bound_pod_is_on_its_node_whatever_else_it_says(chooser: random.Random) -> None:
    decoder = next(each for each in _DECODERS if each.name == "a pod's placement")
    found = kubernetes_pb2.Pod()
    try:
        found.ParseFromString(hostile.changed(chooser.choice(decoder.seeds), chooser))
    except Exception:  # noqa: BLE001 - no pod
        return
    found.spec.nodeName = "n1"
    found.status.phase = "Running"
    found.metadata.labels.clear()  # no pause pod
    found.metadata.annotations.pop("podType", None)
    seen = PodReader("gang", {"default-scheduler"}, "cagrpc").read(found.SerializeToString())
    assert (seen.node, seen.stage) in (("n1", PodStage.MOVABLE), ("n1", PodStage.FIXED), ("n1", PodStage.ENDING))


# ---- the view's lock

_MOST_STEPS = 150_000
"""Under the view's lock for one event: these take 50 ms (`docs/threat-model.md`)."""
_VIEW = "view "
_OF_VIEW = tuple(each for each in _DECODERS if each.name.startswith(_VIEW))


@pytest.mark.parametrize("decoder", _OF_VIEW, ids=lambda each: each.name)
@examples(8)
@given(chooser=st.randoms(use_true_random=False))
def test_no_event_keeps_the_views_lock_for_long(decoder: Decoder, chooser: random.Random) -> None:
    """Whatever is in the object, however often, and beside whatever else; also when it changes, and when it goes."""
    fed = Fed(Exclusion(), expects=True)
    for each in _OF_VIEW:
        followed = fed.followed(each.name.removeprefix(_VIEW))
        for seed in each.raw_seeds():
            followed.applied(followed.resource.decode(item_of(followed.resource, seed)))
    followed = fed.followed(decoder.name.removeprefix(_VIEW))
    for draw in (partial(hostile.grown, times=1_000), hostile.changed, partial(hostile.grown, times=1_000)):
        try:
            item = item_of(followed.resource, draw(chooser.choice(decoder.seeds), chooser))
            decoded = followed.resource.decode(item)
        except InvalidInput:
            continue
        taken = steps(partial(followed.applied, decoded))
        assert taken <= _MOST_STEPS
    fed.state()
    fed.model.arrivals()
    for seed in decoder.raw_seeds():
        gone = identity(followed.resource.encoding, item_of(followed.resource, seed))
        assert steps(partial(followed.deleted, gone)) <= _MOST_STEPS


def _put(fed: Fed, decoder: Decoder, seed: Any) -> None:
    followed = fed.followed(decoder.name.removeprefix(_VIEW))
    with suppress(InvalidInput):
        followed.applied(followed.resource.decode(seed.SerializeToString() if isinstance(seed, Message) else seed))


def _of_others(seed: Any, number: int) -> Any:
    """Return the same object of another name, and of another namespace where it has one."""
    found = deepcopy(seed)
    if isinstance(found, Message):
        metadata: Any = found.metadata  # type: ignore[attr-defined]
        metadata.name += f"-{number}"
        metadata.uid += f"-{number}"
        metadata.namespace = "others" if metadata.namespace else ""
    else:
        metadata = found.setdefault("metadata", {})
        metadata["name"] = f"{metadata.get('name')}-{number}"
        metadata["uid"] = f"{metadata.get('uid')}-{number}"
        if metadata.get("namespace"):
            metadata["namespace"] = "others"
    return found


@pytest.fixture(scope="module")
def beside_others() -> tuple[Fed, Fed]:
    """Return clusters in which others have few objects of every kind, and many."""
    feds = Fed(Exclusion(), expects=True), Fed(Exclusion(), expects=True)
    for fed, count in zip(feds, (20, 80), strict=True):
        for each in _OF_VIEW:
            for seed in each.seeds:
                for number in range(count):
                    _put(fed, each, _of_others(seed, number))
        fed.state()
    return feds


@pytest.mark.parametrize("decoder", _OF_VIEW, ids=lambda each: each.name)
def test_an_event_costs_the_same_whatever_others_have(decoder: Decoder, beside_others: tuple[Fed, Fed]) -> None:
    def come_and_go(fed: Fed) -> None:
        followed = fed.followed(decoder.name.removeprefix(_VIEW))
        for seed in decoder.seeds:
            _put(fed, decoder, seed)
            raw = seed.SerializeToString() if isinstance(seed, Message) else seed
            followed.deleted(identity(followed.resource.encoding, raw))

    few, many = (steps(partial(come_and_go, fed)) for fed in beside_others)
    assert many <= 1.2 * few + 100
