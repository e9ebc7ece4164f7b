"""Specs of pods as keys: they are looked up again and again, and may have hundreds of terms."""

from __future__ import annotations

import pickle

from solver.model import NodeSelectorTerm, Operator, Requirement
from tests.support.solver.problems import spec
from tests.support.steps import steps


def test_the_terms_of_a_spec_are_hashed_once() -> None:
    terms = tuple(NodeSelectorTerm((Requirement("k", Operator.IN, (f"{each}",)),)) for each in range(100))
    asked, same = spec(1000, affinity=terms), spec(1000, affinity=terms)
    assert steps(lambda: hash(asked)) > len(terms)
    assert steps(lambda: hash(asked)) < 10
    assert {asked: 1} == {same: 1}


def test_a_spec_leaves_its_hash_behind_where_it_goes_to_another_process() -> None:
    asked = spec(1000)
    written = pickle.dumps(asked)
    hash(asked)
    assert pickle.dumps(asked) == written
    assert pickle.loads(written) == asked
