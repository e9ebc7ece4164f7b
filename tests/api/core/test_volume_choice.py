"""Which volumes claims can count on, whichever the scheduler binds first."""

from __future__ import annotations

from dataclasses import replace

from cagrpc.api.core.volume_binding import BEYOND_KINDS, MOST_KINDS, choose
from cagrpc.api.core.volumes import Volume, VolumeClaim, VolumeClaimSpec
from solver.model import NodeSelectorTerm, Operator, Requirement

GIB = 1024**3


def _in(*zones: str) -> tuple[NodeSelectorTerm, ...]:
    return (NodeSelectorTerm((Requirement("zone", Operator.IN, zones),)),)


def _volume(name: str, *zones: str, gib: int = 1, modes: tuple[str, ...] = ("ReadWriteOnce",), of: str = "") -> Volume:
    return Volume(
        name,
        affinity=_in(*zones),
        class_name="local",
        claim=of and f"default/{of}",
        available=True,
        access_modes=modes,
        size=gib * GIB,
    )


def _claim(name: str, gib: int = 1, modes: tuple[str, ...] = ("ReadWriteOnce",)) -> VolumeClaim:
    spec = VolumeClaimSpec(class_name="local", access_modes=modes, size=gib * GIB)
    return VolumeClaim(f"default/{name}", spec)


def _chosen(claims: list[VolumeClaim], *volumes: Volume) -> dict[str, str]:
    found = choose(claims, volumes)
    return {key.removeprefix("default/"): " ".join(each.name for each in some.volumes) for key, some in found.items()}


def test_where_each_zone_has_enough_claims_may_use_any() -> None:
    zones = [_volume(f"{zone}{n}", zone) for zone in "ab" for n in range(2)]
    assert _chosen([_claim("c"), _claim("d")], *zones) == {"c": "a0 a1 b0 b1", "d": "a0 a1 b0 b1"}


def test_where_none_has_each_claim_is_given_one_zone() -> None:
    assert _chosen([_claim("c"), _claim("d")], _volume("a", "a"), _volume("b", "b")) == {"c": "a", "d": "b"}


def test_a_claim_that_nothing_suits_takes_nothing_from_others() -> None:
    zones = [_volume("a", "a"), _volume("b", "b")]
    assert _chosen([_claim("c"), _claim("large", gib=9)], *zones) == {"c": "a b"}


def test_no_more_claims_count_on_volumes_than_there_are() -> None:
    assert _chosen([_claim("c"), _claim("d")], _volume("a", "a")) == {"c": "a"}


def test_a_volume_that_is_kept_for_a_claim_is_the_only_one_for_it_and_for_no_other() -> None:
    volumes = (_volume("free", "a"), _volume("kept", "b", of="c"))
    assert _chosen([_claim("c"), _claim("d")], *volumes) == {"c": "kept", "d": "free"}
    assert _chosen([_claim("d"), _claim("e")], *volumes) == {"d": "free"}
    too_small = replace(volumes[1], size=1)
    assert _chosen([_claim("c")], volumes[0], too_small) == {"c": "free"}


def test_the_smallest_that_suits_is_never_one_that_a_larger_claim_needs() -> None:
    volumes = (_volume("one", "a", gib=1), _volume("two", "a", gib=2))
    assert _chosen([_claim("small", 1), _claim("large", 2)], *volumes) == {"small": "one two", "large": "two"}
    assert _chosen([_claim("c", 2), _claim("d", 2)], *volumes) == {"c": "two"}


def test_a_claim_that_may_take_the_only_volume_of_another_is_given_another_zone() -> None:
    many = ("ReadWriteOnce", "ReadWriteMany")
    volumes = (_volume("shared", "a", modes=many), _volume("plain", "a", gib=2), _volume("elsewhere", "b"))
    # In zone a the other would be bound to the smallest, the only one for the first.
    found = _chosen([_claim("c", modes=("ReadWriteMany",)), _claim("d")], *volumes)
    assert found == {"c": "shared", "d": "elsewhere"}


def test_a_volume_in_reach_of_two_zones_may_go_to_a_claim_of_either() -> None:
    volumes = (_volume("a", "a"), _volume("both", "a", "b"))
    assert _chosen([_claim("c")], *volumes) == {"c": "both a"}
    # Whoever comes first in zone a may be bound to the volume that the other one counts on in zone b.
    assert _chosen([_claim("c"), _claim("d")], *volumes) == {"c": "both"}


def test_claims_of_one_kind_share_their_choice_and_other_volumes_of_the_same_nodes_change_nothing() -> None:
    """Or reading thousands of pods would look at thousands of volumes for each."""
    claims = [_claim(f"c{n}") for n in range(3)]
    volumes = [_volume(f"{zone}{n}", zone) for zone in "ab" for n in range(3)]
    for there, zones in ((volumes, "ab"), (volumes[:3], "a")):
        before = choose(claims, there)
        assert len({id(each) for each in before.values()}) == 1
        assert before["default/c0"].affinity == tuple(term for zone in zones for term in _in(zone))
        assert choose(claims, [*there, _volume("more", "a")]) == before
    assert choose(claims, [*volumes[:3], *(_volume(f"c{n}", "c") for n in range(3))]) != before


def test_of_one_namespaces_claims_so_many_kinds_are_looked_at_and_all_of_anothers() -> None:
    many = [_claim(f"c{size:03d}", gib=size) for size in range(1, MOST_KINDS + 3)]
    another = replace(_claim("z", gib=MOST_KINDS + 2), key="other/z")
    volumes = [_volume(f"v{number:03d}", "a", gib=MOST_KINDS + 2) for number in range(MOST_KINDS + 3)]
    volumes[-1] = replace(volumes[-1], claim="default/c052")
    found = choose([*many, another], volumes)
    assert [key for key, some in found.items() if some is BEYOND_KINDS] == [f"default/c{MOST_KINDS + 1:03d}"]
    assert found.keys() == {each.key for each in (*many, another)}
    assert found["default/c052"].kept is not None  # what is kept for a claim is its own, whatever kind it is of
