"""The text of a first configuration, from what was found: which of the configurations it is, that each line says where
it comes from, and that a server accepts it whatever was found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.backends.plugin import ImportedSections
from cagrpc.config.load import parse_settings
from cagrpc.config.settings import Settings
from cagrpc.controllers.autoscaler import GroupPriorities, GroupSize, read_priorities
from cagrpc.controllers.settings import ExpanderMode, JournalKind
from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.offline.first_configuration import (
    AutoscalerObjects,
    AutoscalerWorkload,
    ClusterFindings,
    NodeLabelCounts,
    PodCounts,
    first_configuration,
)
from tests.support.examples import examples

NAME = "Deployment kube-system/cluster-autoscaler"
PRIORITIES = read_priorities("10: ['.*']\n50: [eks-spot-.*, ^m5]\n")
CLASS = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}


def autoscaler(provider: str, **flags: str) -> AutoscalerWorkload:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return AutoscalerWorkload(NAME, "1.34.0", {"cloud-provider": provider, **named})


def pools(*provisioners: dict[str, Any], thawed: tuple[str, ...] = ()) -> ImportedSections:
    parameters = {str(each.get("name")): {"node_class": CLASS} for each in provisioners}
    backend = {"karpenter": {"provisioners": parameters}}
    return ImportedSections({"provisioners": list(provisioners), "backend": backend}, ("it warns",), thawed)


def general(**more: Any) -> dict[str, Any]:
    families = [{"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i"]}]
    return {"name": "general", "weight": 10, "requirements": families, **more}


def written(**found: Any) -> str:
    text = first_configuration(ClusterFindings("https://it:6443", Path("/etc/kubeconfig"), **found))
    accepted(text)
    return text


def accepted(text: str) -> Settings:
    """Return the settings; every line that is a setting says where it comes from."""
    for line in text.splitlines():
        assert not line or "# " in line or line == "#", line
    return parse_settings(text, "it", Path())


def settings_in(text: str) -> Any:
    return yaml.safe_load(text)


def uncommented(text: str, without: str = "\0") -> str:
    """Return the text after its reader has removed `# ` from provisioners and backend, and the line `without`."""
    blocks = "\n".join(line for line in text.splitlines() if not line.startswith(without)).split("\n\n")
    return "\n\n".join(map(_uncommented, blocks))


def _uncommented(block: str) -> str:
    lines = block.splitlines()
    begins = [number for number, line in enumerate(lines) if re.match(r"# (backend|provisioners):", line)]
    at = begins[0] if begins else len(lines)
    return "\n".join([*lines[:at], *(line.removeprefix("# ") for line in lines[at:])])


def test_beside_another_provider_it_is_the_expander_in_shadow() -> None:
    text = written(
        autoscalers=[autoscaler("aws", expander="priority", namespace="autoscaling", status_config_map_name="mine")],
        objects=AutoscalerObjects("autoscaling", "mine", {"a": GroupSize(3, 5, "none left")}, PRIORITIES),
        pods=PodCounts(5, {"default-scheduler": 4, "volcano": 1}, {"kueue.x-k8s.io/pod-group-name": 2}),
    )
    settings = accepted(text)
    assert settings.provider is None
    assert settings.answers.mode is ExpanderMode.SHADOW
    assert settings.answers.knows_vetoes
    assert f"  autoscaler_version: 1.34.0  # {NAME}: the tag of its image\n" in text
    assert settings.config_maps is not None
    assert (settings.config_maps.namespace, settings.config_maps.status_config_map) == ("autoscaling", "mine")
    assert settings.schedulers == {"default-scheduler", "volcano"}
    assert settings.cluster is not None
    assert settings.cluster.gang_label == "kueue.x-k8s.io/pod-group-name"
    assert f"provider: {{enabled: false}}  # {NAME}: --cloud-provider=aws\n" in text
    assert f"    namespace: autoscaling  # {NAME}: --namespace=autoscaling\n" in text
    assert "  - volcano  # 1 pod: spec.schedulerName\n" in text
    assert f"# - {NAME} asks cagrpc with --expander=grpc,priority and the flags" in text
    assert "# - ConfigMap autoscaling/mine: backed off from a\n" in text


def test_ones_own_priorities_and_spot_nodes_are_examples_that_are_valid() -> None:
    found: dict[str, Any] = {"autoscalers": [autoscaler("aws")]}
    spot = NodeLabelCounts(2, spot_labels={("eks.amazonaws.com/capacityType", "SPOT"): 2}, unpriced={"m9.large": 2})
    by_priority = accepted(uncommented(written(**found, nodes=spot, objects=AutoscalerObjects(priorities=PRIORITIES))))
    by_label = written(**found, nodes=spot)
    assert [(each.name, each.weight) for each in by_priority.provisioners] == [("priority-50", 50), ("priority-10", 10)]
    (provisioner,) = accepted(uncommented(by_label)).provisioners
    assert (provisioner.name, provisioner.weight) == ("spot", 50)
    assert "#   prices: prices.csv  # a table of yours" in by_label
    assert "m9.large (2)" in by_label


def test_a_status_without_a_workload_is_of_one_that_runs_out_of_sight() -> None:
    text = written(objects=AutoscalerObjects(sizes={"a": GroupSize(3, 5)}))
    assert "provider: {enabled: false}  # ConfigMap kube-system/cluster-autoscaler-status: a cluster-autoscaler" in text
    assert settings_in(text)["expander"] == {"mode": "shadow", "config_maps": {}}


@pytest.mark.parametrize("autoscalers", [[], [autoscaler("externalgrpc", max_node_provision_time="6m")]])
def test_frozen_node_pools_are_the_providers(autoscalers: list[AutoscalerWorkload]) -> None:
    text = written(autoscalers=autoscalers, node_pools=pools(general()), api_groups=frozenset({"cagrpc.io"}))
    settings = accepted(text)
    assert settings.provider is not None
    assert {group.provisioner for group in settings.groups} == {"general"}
    assert settings.cluster is not None
    assert settings.cluster.journal is JournalKind.CLUSTER
    assert settings.increment_deadline_seconds == (240 if autoscalers else 600)
    assert "drive: assist  # the default: nothing is ordered" in text
    assert "  - name: general  # NodePool general\n" in text
    assert "# - it warns\n" in text


def test_node_pools_that_are_not_frozen_are_a_comment_that_says_what_to_do() -> None:
    text = written(node_pools=pools(general(), thawed=("NodePool general: thaws",)))
    settings = accepted(text)
    assert settings.provider is None
    assert settings.cluster is not None
    assert settings.cluster.journal is JournalKind.SQLITE
    assert "# - NodePool general: thaws\n" in text
    later = accepted(uncommented(text, without="provider:"))
    assert later.provider is not None
    assert {group.provisioner for group in later.groups} == {"general"}


def test_what_a_server_would_refuse_is_a_comment_with_the_reason() -> None:
    none_such = general(
        name="none", requirements=[{"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["x"]}]
    )
    both = written(node_pools=pools(general(), none_such), pods=PodCounts(1, {"x" * 300: 1}))
    assert {group.provisioner for group in accepted(both).groups} == {"general"}
    assert "there is no provisioner of this name" in both
    assert "#   - {name: none" in both or "#   - name: none" in both
    assert "# Left out, as a server would refuse it: schedulers[1]" in both
    alone = written(node_pools=pools(none_such))
    assert accepted(alone).provider is None
    assert alone.count("# Left out") == 1
    assert "there is no provisioner of this name" in alone


def test_with_neither_it_says_what_was_looked_for() -> None:
    text = written(unread=["pods could not be read: the right is\nmissing"])
    assert settings_in(text) == {
        "provider": {"enabled": False},
        "kubernetes": {"kubeconfig": "/etc/kubeconfig"},
        "expander": {"mode": "shadow"},
    }
    assert "# - pods could not be read: the right is missing\n" in text
    assert "no cluster-autoscaler was found" in text


def test_one_that_asks_for_a_provider_and_has_no_node_pools() -> None:
    text = written(autoscalers=[autoscaler("externalgrpc", expander="grpc", balance_similar_node_groups="true",
                                           expendable_pods_priority_cutoff="-5")])  # fmt: skip
    assert f"provider: {{enabled: false}}  # {NAME} asks for one, but no NodePool" in text
    assert "it splits what was chosen" in text
    assert f"  expendable_pods_priority_cutoff: -5  # {NAME}: --expendable-pods-priority-cutoff\n" in text


def test_schedulers_that_the_autoscaler_bypasses_are_planned_for() -> None:
    text = written(
        pods=PodCounts(schedulers={"default-scheduler": 2, "volcano": 1}),
        autoscalers=[autoscaler("aws", bypassed_scheduler_names="default-scheduler, volcano,yunikorn")],
    )
    assert "  - default-scheduler  # the default; 2 pods\n" in text
    assert "  - volcano  # 1 pod: spec.schedulerName\n" in text
    assert f"  - yunikorn  # {NAME}: --bypassed-scheduler-names\n" in text


SIZES = st.builds(GroupSize, st.integers(0, 9), st.integers(0, 9), st.text(max_size=9))
WORDS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "-", "a: b #c", "a\nprovider: {enabled: true}", "x" * 2000, "\x1b[0m\u2028\ufffe", "'\"\\", "&a", "*a"]
    ),
)
COUNTS = st.dictionaries(WORDS, st.integers(0, 9), max_size=4)
FLAGS = st.dictionaries(st.sampled_from(["cloud-provider", "expander", "namespace", "max-node-provision-time",
                                         "bypassed-scheduler-names",
                                         "status-config-map-name", "balance-similar-node-groups"]),
                        WORDS | st.sampled_from(["externalgrpc", "aws", "5m"]))  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {"name": WORDS | st.sampled_from(["general", "other"])},
    optional={"weight": VALUES, "labels": VALUES, "limits": st.just({"cpu": "10"}) | VALUES, "taints": VALUES},
)
PATTERNS = st.sampled_from([".*", "a#b", "'", "^x$", "\\d: "]).map(GroupPattern)
FOUND = st.builds(
    ClusterFindings,
    server=WORDS,
    kubeconfig=st.just(Path("/it")),
    context=st.sampled_from(["", "it"]),
    version=WORDS,
    autoscalers=st.lists(st.builds(AutoscalerWorkload, WORDS, WORDS, FLAGS), max_size=2),
    objects=st.builds(
        AutoscalerObjects,
        WORDS,
        WORDS,
        st.none() | st.dictionaries(WORDS, SIZES, max_size=3),
        st.none()
        | st.lists(st.tuples(st.integers(1, 100), st.lists(PATTERNS, max_size=2).map(tuple)), max_size=3).map(
            lambda found: GroupPriorities(tuple(found))
        ),
    ),
    node_pools=st.none()
    | st.builds(
        lambda found, thawed: pools(*found, thawed=thawed),
        st.lists(ENTRIES, max_size=3),
        st.lists(WORDS, max_size=2).map(tuple),
    ),
    nodes=st.none()
    | st.builds(NodeLabelCounts, st.integers(0, 9), COUNTS, COUNTS,
                st.dictionaries(st.tuples(WORDS, WORDS), st.integers(1, 5), max_size=2), COUNTS, COUNTS),
    pods=st.none() | st.builds(PodCounts, st.integers(0, 9), COUNTS, COUNTS),
    api_groups=st.sampled_from([frozenset(), frozenset({"cagrpc.io", "kueue.x-k8s.io"})]),
    unread=st.lists(WORDS, max_size=3),
)  # fmt: skip


@given(FOUND)
@examples(100)
def test_whatever_was_found_a_server_accepts_it(found: ClusterFindings) -> None:
    settings = accepted(first_configuration(found))
    assert settings.provider is None or settings.groups
