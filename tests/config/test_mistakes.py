"""Mistakes in a configuration: each is named with its path, what was found and what would be right; all at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cagrpc.config.load import parse_settings
from cagrpc.config.yaml_text import parse_documents
from cagrpc.errors import InvalidConfiguration

GROUP = "provisioners: [{name: p, node_groups: [{id: g, instance_type: m7i.large}]}]\n"


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_settings(text, "c.yaml", Path())
    return list(caught.value.problems)


CASES = {
    "address without a port": (
        "listen: {provider: localhost}",
        'listen.provider: found "localhost", expected host:port',
    ),
    "port beyond ports": ("listen: {http: 'h:65536'}", 'listen.http: found "h:65536", expected a port from 0 to 65535'),
    "IPv6 without brackets": ("listen: {http: '::1:80'}", 'listen.http: found "::1:80", expected host:port'),
    "one address twice": ("listen: {http: '127.0.0.1:8086'}", "listen.provider and listen.http are both"),
    "two ways of TLS": ("tls: {insecure: true, directory: d}", "tls: expected one of directory, certificate"),
    "what pods are nominated for now": (
        "planner: {realise: bind, scoring: MostAllocated}",
        "planner: found realise and scoring, which earlier releases knew",
    ),
    "half of a certificate": ("tls: {certificate: c}", "tls: found certificate without key and client_ca"),
    "names without certificates": ("tls: {insecure: true, client_names: [x]}", "tls: found client_names with insecure"),
    "an empty name": ("tls: {client_names: ['']}", "tls.client_names[0]: "),
    "half of a certificate for HTTP": ("http: {key: k}", "http: found key without certificate"),
    "tokens in the clear": (
        "http: {insecure: true, audiences: [x]}",
        "http: found audiences with insecure: true; plain HTTP has neither TLS nor tokens",
    ),
    "HTTP everywhere without a certificate": (
        "tls: {insecure: true}\nlisten: {http: '0.0.0.0:8088'}",
        'listen.http: found "0.0.0.0:8088" and no certificate for it, expected http.certificate with http.key',
    ),
    "misspelt section": ("catalog: x.csv", 'catalog: unknown field; did you mean "catalogue"?'),
    "no such catalogue": ("catalogue: no.csv", "catalogue: no.csv: cannot be read: No such file or directory"),
    "bad quantity": ("limits: {cpu: 10x}", 'limits.cpu: "10x" is not a quantity'),
    "negative quantity": ("limits: {memory: -1Gi}", 'limits.memory: "-1Gi" is negative'),
    "quantity that is none": ("limits: {memory: [1]}", "limits.memory: found [1], expected a quantity"),
    "more cpu than 64 bits": ("limits: {cpu: 9E}", 'limits: "9E" is out of range'),
    "not a resource": (
        "limits: {gpu: 1}",
        'limits.gpu: found "gpu", expected the name of a resource, such as "nvidia.com/gpu"',
    ),
    "no shown groups": ("shown_groups: 0", "shown_groups: found 0, expected 1 or more"),
    "number as text": ("shown_groups: '5'", 'shown_groups: found "5", expected a whole number'),
    "not finite": (
        "expander_budget_seconds: .nan",
        "expander_budget_seconds: found NaN, expected expander_budget: ",
    ),
    "slower than CA waits": (
        "expander_budget: 5s",
        'expander_budget: found "5s", expected a duration from "1ms" to "3s", such as "2s"',
    ),
    "as long as CA's own patience": (
        "increment_deadline: 15m",
        'increment_deadline: found "15m", expected less than "15m"',
    ),
    "longer than this group's patience": (
        "autoscaling: {max_node_provision_time: 5m}",
        'increment_deadline: found "10m", expected less than the "5m" of max_node_provision_time of',
    ),
    "fraction beyond one": (
        "autoscaling: {scale_down_utilization_threshold: 50}",
        "autoscaling.scale_down_utilization_threshold: found 50, expected 1 or less",
    ),
    "not a label": ("gpu_label: 'a b'", 'gpu_label: found "a b", expected the key of a label'),
    "unknown setting of the simulation": (
        "backend: {simulated: {m7i.large: {stocks: 1}}}",
        'backend.simulated["m7i.large"].stocks: unknown field; did you mean "stock"?',
    ),
    "behaviour that is none": (
        "backend: {simulated: {g: 5}}",
        "backend.simulated.g: found 5, expected a mapping",
    ),
    "unknown backend": ("backend: {aws: {}}", "backend.aws: unknown field"),
}


@pytest.mark.parametrize(("text", "problem"), CASES.values(), ids=CASES.keys())
def test_a_mistake_in_the_file(text: str, problem: str) -> None:
    (found,) = problems(GROUP + text)
    assert problem in found


PROVISIONER_CASES = {
    "none at all": ("[]", "provisioners: found none, expected at least one, or provider: {enabled: false}"),
    "not a list": ("5", "provisioners: found 5, expected a list"),
    "weight 0": ("[{name: p, weight: 0}]", "provisioners[0].weight: found 0, expected a whole number from 1 to 100"),
    "weight 101": ("[{name: p, weight: 101}]", "provisioners[0].weight: found 101, expected a whole number from 1"),
    "weight with a part": ("[{name: p, weight: 1.5}]", "provisioners[0].weight: found 1.5, expected a whole number"),
    "weight as text": ("[{name: p, weight: '5'}]", 'provisioners[0].weight: found "5", expected a whole number'),
    "weight yes": ("[{name: p, weight: yes}]", "provisioners[0].weight: found true, expected a whole number"),
    "no name": ("[{weight: 5}]", "provisioners[0].name: is missing"),
    "empty name": ("[{name: }]", "provisioners[0].name: is empty; give the provisioner a name"),
    "name with a slash": ("[{name: a/b}]", 'provisioners[0].name: found "a/b", expected lower-case letters'),
    "operator in small letters": (
        "[{name: p, requirements: [{key: k, operator: in, values: [v]}]}]",
        'provisioners[0].requirements[0].operator: found "in", expected one of "In", "NotIn", "Exists"',
    ),
    "In without values": (
        "[{name: p, requirements: [{key: k, operator: In}]}]",
        "provisioners[0].requirements[0]: values: found [], expected at least one value with operator In",
    ),
    "Exists with values": (
        "[{name: p, requirements: [{key: k, operator: Exists, values: [v]}]}]",
        'provisioners[0].requirements[0]: values: found ["v"], expected no values with operator Exists',
    ),
    "Gt with a word": (
        "[{name: p, requirements: [{key: k, operator: Gt, values: [v]}]}]",
        'found ["v"], expected one value that is a whole number with operator Gt',
    ),
    "value without quotes": (
        "[{name: p, requirements: [{key: k, operator: In, values: [5]}]}]",
        "provisioners[0].requirements[0].values[0]: found 5, expected text; put it in quotes",
    ),
    "hostname": ("[{name: p, labels: {kubernetes.io/hostname: x}}]", "which is set for each node"),
    "label value with a space": ("[{name: p, labels: {a.b/c: 'x y'}}]", 'provisioners[0].labels["a.b/c"]: found "x y"'),
    "unknown effect": (
        "[{name: p, taints: [{key: k, effect: NoScheduling}]}]",
        'provisioners[0].taints[0].effect: found "NoScheduling", expected one of "NoSchedule", "PreferNoSchedule"',
    ),
    "node_groups empty": ("[{name: p, node_groups: []}]", "provisioners[0].node_groups: found [], expected at least 1"),
    "unknown instance type": (
        "[{name: p, node_groups: [{id: g, instance_type: m7i.lrge}]}]",
        (
            'provisioners[0].node_groups[0].instance_type: found "m7i.lrge", which the catalogue does not have; did '
            'you mean "m7i.large"?'
        ),
    ),
    "neither type nor shape": (
        "[{name: p, node_groups: [{id: g}]}]",
        "provisioners[0].node_groups[0]: give instance_type",
    ),
    "shape without a price": (
        "[{name: p, node_groups: [{id: g, allocatable: {cpu: 1, memory: 1Gi, pods: 1}}]}]",
        "provisioners[0].node_groups[0]: price_usd_per_hour is missing",
    ),
    "shape without memory": (
        "[{name: p, node_groups: [{id: g, allocatable: {cpu: 1, pods: 1}, price_usd_per_hour: 1}]}]",
        "provisioners[0].node_groups[0].allocatable: has no memory",
    ),
    "architecture of a type": (
        "[{name: p, node_groups: [{id: g, instance_type: m7i.large, arch: arm64}]}]",
        "provisioners[0].node_groups[0].arch: goes with allocatable",
    ),
    "maximum below minimum": (
        "[{name: p, node_groups: [{id: g, instance_type: m7i.large, min_size: 3, max_size: 2}]}]",
        "provisioners[0].node_groups[0].max_size: found 2, expected min_size (3) or more",
    ),
    "price not finite": (
        "[{name: p, node_groups: [{id: g, instance_type: m7i.large, price_usd_per_hour: .inf}]}]",
        "provisioners[0].node_groups[0].price_usd_per_hour: found Infinity",
    ),
    "no such file of groups": (
        "[{name: p, node_groups: [{file: no.json}]}]",
        "provisioners[0].node_groups[0].file: no.json: cannot be read",
    ),
    "no such file of provisioners": ("[{file: no.yaml}]", "provisioners[0].file: no.yaml: cannot be read"),
    "one name twice": (
        "[{name: p}, {name: q}, {name: p}]",
        'provisioners[2]: the name "p" is taken by provisioners[0]',
    ),
    "one id twice": (
        (
            "[{name: p, node_groups: [{id: g, instance_type: m7i.large}]},"
            " {name: q, node_groups: [{id: g, instance_type: m7i.large}]}]"
        ),
        'provisioners[1].node_groups[0]: the node group id "g" is taken by provisioners[0].node_groups[0]',
    ),
    "an id that another one expands to": (
        ("[{name: p}, {name: q, node_groups: [{id: p/m7i.large/zone-a/on-demand, instance_type: m7i.large}]}]"),
        'provisioners[1]: the node group id "p/m7i.large/zone-a/on-demand" is provisioners[0]\'s already',
    ),
    "a Pod": (
        "[{apiVersion: v1, kind: Pod}]",
        'provisioners[0]: found apiVersion "v1", kind "Pod"; expected "karpenter.sh/v1"',
    ),
    "a document without a kind": ("[{apiVersion: karpenter.sh/v1}]", "provisioners[0]: found apiVersion"),
}


@pytest.mark.parametrize(("text", "problem"), PROVISIONER_CASES.values(), ids=PROVISIONER_CASES.keys())
def test_a_mistake_in_a_provisioner(text: str, problem: str) -> None:
    (found,) = problems(f"provisioners: {text}")
    assert problem in found


def test_every_error_at_once_each_with_its_path() -> None:
    found = problems(
        """
        listen: {http: x}
        catalogue: no.csv
        provisioners:
          - {name: p, weight: 0, requirements: [{key: k, operator: in, values: [v]}]}
          - {name: p, node_groups: [{id: g, min_size: -1, instance_type: m7i.large}, {id: g, price_usd_per_hour: a}]}
          - {file: no.yaml}
          - {apiVersion: karpenter.sh/v1alpha5, kind: Provisioner, metadata: {name: q}, spec: {weight: 200}}
        limits: {cpu: x}
        """
    )
    places = {problem.split(": ")[0] for problem in found}
    assert places == {
        "listen.http",
        "catalogue",
        "provisioners[0].weight",
        "provisioners[0].requirements[0].operator",
        "provisioners[1].node_groups[0].min_size",
        "provisioners[1].node_groups[1].price_usd_per_hour",
        "provisioners[1].node_groups[1]",
        "provisioners[1]",
        "provisioners[2].file",
        "provisioners[3].spec.weight",
        "limits.cpu",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "c.yaml: has 0 documents, expected one", id="empty"),
        pytest.param("# nothing\n", "c.yaml: has 0 documents", id="a comment"),
        pytest.param("a: 1\n---\nb: 2", "c.yaml: has 2 documents", id="two documents"),
        pytest.param("[]", "the file: found [], expected a mapping", id="a list"),
        pytest.param("{}", "provisioners: found none, expected at least one", id="nothing in it"),
        pytest.param("a: b: c", "c.yaml:1:5: is not YAML: mapping values are not allowed here", id="syntax"),
        pytest.param("a: 1\nb: [2\n", "c.yaml:3:1: is not YAML: while parsing a flow sequence", id="an open list"),
        pytest.param("a:\n\t- 1", "c.yaml:2:1: is not YAML: ", id="a tab"),
        pytest.param("a: 1\nb: 2\na: 3", 'c.yaml:3:1: duplicate key "a", first in line 1', id="a key twice"),
        pytest.param("a: &x [*x]", "c.yaml:1:4: contains itself", id="a list in itself"),
        pytest.param("a: \x01", "c.yaml:1: is not YAML: character 0x1 is not allowed", id="a control character"),
        pytest.param("a: !!python/object:os.system {}", "could not determine a constructor", id="a foreign tag"),
        pytest.param("a: 2024-13-45", "c.yaml: is not YAML: month must be in 1..12", id="no date"),
        pytest.param("[" * 3000, "c.yaml: is nested too deeply", id="nested too deeply"),
        pytest.param("a: " + "9" * 5000, "c.yaml: is not YAML: Exceeds the limit", id="a number without end"),
        pytest.param('a: "\\ud800"', 'c.yaml:1:4: has an incomplete character: "\\ud800"', id="half a character"),
        pytest.param("? [a]\n: 1", "c.yaml:1:3: is not YAML: while constructing a mapping", id="a list as a key"),
    ],
)
def test_text_that_is_no_configuration(text: str, problem: str) -> None:
    assert any(found.startswith(problem) or problem in found for found in problems(text))


def test_characters_that_json_escapes_in_halves_are_joined() -> None:
    assert parse_documents(json.dumps({"a": "\N{PILE OF POO}"}), "c.yaml") == [{"a": "\N{PILE OF POO}"}]


def test_aliases_that_multiply_are_refused_before_they_are_written_out() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert problems("\n".join(lines)) == ["c.yaml:6:5: stands for more than 200000 values, aliases written out"]
