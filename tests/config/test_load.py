"""A configuration file to settings: what each field becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.backends.plugin import OpenedLater
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.backends.simulated.plugin import SimulatedSettings
from cagrpc.config.files import load_provisioners
from cagrpc.config.load import load_default_settings, load_settings, parse_settings
from cagrpc.config.schema.listen import Address, parse_address
from cagrpc.config.settings import Settings
from cagrpc.controllers.settings import ClassBehaviour, NamespaceSettings, RequestSettings
from cagrpc.errors import InvalidConfiguration, InvalidInput
from cagrpc.fleet.catalogue import embedded_catalogue
from solver.model import ATTACHABLE_VOLUMES, UNLIMITED_SIZE, NodeGroup, Taint, TaintEffect

MIB = 2**20
GROUP = "provisioners: [{name: p, node_groups: [{id: g, instance_type: m7i.large}]}]\n"


def parse(text: str, directory: Path = Path()) -> Settings:
    return parse_settings(text, "c.yaml", directory)


def problems(text: str, directory: Path = Path()) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse(text, directory)
    return list(caught.value.problems)


def only_group(text: str) -> NodeGroup:
    (group,) = parse(text).groups
    return group


def test_an_expander_alone_needs_nothing_else_and_has_no_nodes_of_its_own() -> None:
    alone = "provider: {enabled: false}\n"
    assert parse(alone).provider is None
    found = parse(alone + "provisioners: [{name: spot, weight: 9, groups: [a]}, {name: any}]")
    assert ([each.name for each in found.provisioners], found.groups, found.warnings) == (["spot", "any"], (), ())


def test_an_expander_alone_has_nothing_that_is_of_nodes_of_its_own() -> None:
    text = "provider: {enabled: false}\nlimits: {cpu: 9}\nslack: {targets: []}\nkubernetes: {in_cluster: true}\n"
    (found,) = problems(text + "drive: plan")
    assert "found drive: plan, slack, limits with provider: {enabled: false}; these are of nodes of" in found


@pytest.mark.parametrize(
    ("expander", "problem"),
    [
        ("{batch: {}, autoscaler_version: '1.31'}", 'expander: autoscaler_version: found "1.31" with batch, expected'),
        ("{batch: {idle: 1m}}", 'expander.batch: window: found "30s", expected at least idle, "1m"'),
        ("{spread: {}}", "expander.spread"),
        ("{spread: {'(': 1}}", "is not a regular expression"),
        ("{veto_partial_gangs: true}", "expander.veto_partial_gangs needs the section kubernetes"),
        ("{config_maps: {}}", "expander.config_maps are in a cluster and need the section kubernetes"),
    ],
)
def test_answers_that_cannot_be_given(expander: str, problem: str) -> None:
    assert problem in " ".join(problems(f"{GROUP}expander: {expander}"))


def test_the_smallest_configuration_and_its_defaults(tmp_path: Path) -> None:
    settings = parse(GROUP, tmp_path)
    assert [str(a) for a in (settings.provider, settings.expander, settings.http)] == [
        "127.0.0.1:8086", "127.0.0.1:8087", "127.0.0.1:8088",
    ]  # fmt: skip
    assert settings.state_directory == tmp_path / ".cagrpc"
    assert settings.tls is not None
    assert settings.tls.certificate == tmp_path / ".cagrpc" / "certs" / "server.crt"
    assert settings.tls.key == tmp_path / ".cagrpc" / "certs" / "server.key"
    assert settings.tls.client_ca == tmp_path / ".cagrpc" / "certs" / "ca.crt"
    assert settings.catalogue is embedded_catalogue()
    assert (settings.increment_deadline_seconds, settings.expander_budget_seconds) == (600.0, 2.0)
    assert (settings.shown.count, settings.shown.always) == (50, frozenset({"g"}))
    assert not settings.limits
    assert not settings.options, "CA keeps its defaults"
    assert not settings.warnings


def test_every_section_is_used(tmp_path: Path) -> None:
    settings = parse(
        """
        listen: {provider: "[::1]:0", expander: "0.0.0.0:1", http: "localhost:2"}
        tls: {certificate: a.crt, key: /b.key, client_ca: c.crt, client_names: [ca, "spiffe://x/ca"]}
        state_directory: state
        provisioners:
          - {name: p, limits: {cpu: 8, nodes: 4}, node_groups: [{id: g, instance_type: m7i.large}]}
        limits: {memory: 1Ti}
        shown_groups: 7
        gpu_label: example.com/gpu
        increment_deadline: 2m
        expander_budget: 500ms
        """,
        tmp_path,
    )
    assert settings.provider == Address("::1", 0)
    assert str(settings.provider) == "[::1]:0"
    assert settings.tls is not None
    assert [settings.tls.certificate, settings.tls.key, settings.tls.client_ca] == [
        tmp_path / "a.crt", Path("/b.key"), tmp_path / "c.crt",
    ]  # fmt: skip
    assert settings.tls.client_names == ("ca", "spiffe://x/ca")
    assert settings.state_directory == tmp_path / "state"
    assert [(limit.name, limit.maxima, limit.node_groups) for limit in settings.limits] == [
        ("provisioner p", {"cpu": 8000, "nodes": 4}, {"g"}),
        ("cluster", {"memory": 2**40}, None),
    ]
    assert settings.groups[0].max_size == UNLIMITED_SIZE, "what limits allow is the limits' own"
    assert (settings.shown.count, settings.gpu_label) == (7, "example.com/gpu")
    assert (settings.increment_deadline_seconds, settings.expander_budget_seconds) == (120, 0.5)


def test_plaintext_only_when_it_is_asked_for() -> None:
    assert parse(GROUP + "tls: {insecure: true}").tls is None
    assert parse(GROUP + "tls: {insecure: false}").tls is not None


def test_names_of_clients_go_with_any_certificates() -> None:
    tls = parse(GROUP + "tls: {client_names: [cluster-autoscaler]}").tls
    assert tls is not None
    assert (tls.client_names, tls.certificate.name) == (("cluster-autoscaler",), "server.crt")
    default = parse(GROUP).tls
    assert default is not None
    assert default.client_names == ()


def test_a_node_group_of_an_instance_type() -> None:
    group = only_group(
        """
        provisioners:
          - name: p
            weight: 30
            labels: {team: a}
            taints: [{key: dedicated, value: x, effect: NoSchedule}]
            node_groups:
              - id: g
                instance_type: m7i.large
                zone: us-east-1c
                min_size: 1
                max_size: 9
                price_usd_per_hour: 0.05
                labels: {disk: fast}
                taints: [{key: slow, effect: PreferNoSchedule}]
        """
    )
    assert (group.min_size, group.max_size, group.weight, group.price_usd_per_hour) == (1, 9, 30, 0.05)
    assert group.allocatable == {
        "cpu": 1930,
        "memory": 6903 * MIB,
        "pods": 29,
        "ephemeral-storage": 17 * 1024 * MIB,
        f"{ATTACHABLE_VOLUMES}ebs.csi.aws.com": 31,
    }
    assert group.capacity == {"cpu": 2000, "memory": 8192 * MIB, "pods": 29}
    assert group.taints == (
        Taint("dedicated", TaintEffect.NO_SCHEDULE, "x"),
        Taint("slow", TaintEffect.PREFER_NO_SCHEDULE),
    )
    wanted = {
        "team": "a", "disk": "fast", "topology.kubernetes.io/zone": "us-east-1c", "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "m7i.large", "karpenter.sh/nodepool": "p",
    }  # fmt: skip
    assert wanted.items() <= group.labels.items()
    assert group.zone == "us-east-1c"


def test_a_node_group_of_a_shape_given_by_hand() -> None:
    group = only_group(
        """
        provisioners:
          - name: p
            node_groups:
              - id: bare-metal
                allocatable: {cpu: 31.5, memory: 120Gi, pods: 110, nvidia.com/gpu: 2}
                arch: arm64
                zone: rack-7
                price_usd_per_hour: 3
        """
    )
    by_hand = {"cpu": 31_500, "memory": 120 * 1024 * MIB, "pods": 110, "nvidia.com/gpu": 2}
    assert group.allocatable == {**by_hand, "ephemeral-storage": 17 * 1024 * MIB}
    assert group.labels["kubernetes.io/arch"] == "arm64"
    assert (group.zone, group.price_usd_per_hour, group.max_size) == ("rack-7", 3.0, UNLIMITED_SIZE)
    assert group.labels["cagrpc.io/gpu"] == "nvidia", "CA is to wait for the GPUs of its nodes"


@pytest.mark.parametrize(
    ("resource", "label"),
    [
        ("amd.com/gpu", "amd"),
        ("habana.ai/gaudi", "intel-gaudi"),
        ("gpu.intel.com/xe", "intel"),
        ("microsoft.com/directx", "directx"),
        ("example.com/fpga", None),
    ],
)
def test_the_gpu_label_is_on_groups_with_whatever_the_autoscaler_knows_as_gpus(
    resource: str, label: str | None
) -> None:
    settings = parse(
        f"""
        provisioners:
          - name: p
            node_groups:
              - {{id: g, allocatable: {{cpu: 4, memory: 16Gi, pods: 110, {resource}: 1}}, price_usd_per_hour: 1}}
        """
    )
    (group,) = settings.groups
    assert group.labels.get("cagrpc.io/gpu") == label


def test_the_gpu_label_is_on_groups_with_nvidia_gpus_and_on_no_other() -> None:
    settings = parse(
        """
        provisioners:
          - name: p
            node_groups: [{id: whole, instance_type: g5.xlarge}, {id: part, instance_type: g6f.large}]
        """
    )
    assert [group.labels.get("cagrpc.io/gpu") for group in settings.groups] == ["a10g", None]


ZONED = """\
instance_type,arch,category,family,generation,size,vcpu,memory_mib,gpu_name,allocatable_cpu_milli,allocatable_memory_mib,\
allocatable_pods,allocatable_gpu,usd_per_hour,zone,capacity_type,available
m5.large,amd64,m,m5,5,large,2,8192,,1930,6903,29,0,0.1,a,on-demand,
m5.large,amd64,m,m5,5,large,2,8192,,1930,6903,29,0,0.11,b,on-demand,3
m5.large,amd64,m,m5,5,large,2,8192,,1930,6903,29,0,0.03,b,spot,
c5.large,amd64,c,c5,5,large,2,4096,,1930,3500,29,0,0.08,a,on-demand,
c5.large,amd64,c,c5,5,large,2,4096,,1930,3500,29,0,0.02,a,spot,
"""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param("instance_type: m5.large, zone: a", ("a", "on-demand", 0.1, UNLIMITED_SIZE), id="the zone's"),
        pytest.param("instance_type: m5.large, zone: b", ("b", "on-demand", 0.11, 3), id="on demand first"),
        pytest.param(
            "instance_type: m5.large, capacity_type: spot", ("b", "spot", 0.03, UNLIMITED_SIZE), id="the only spot"
        ),
        pytest.param("instance_type: c5.large", ("a", "on-demand", 0.08, UNLIMITED_SIZE), id="on demand before spot"),
        pytest.param(
            "instance_type: m5.large", "m5.large is offered in a/on-demand, b/on-demand; say which with zone and",
            id="more than one",
        ),
        pytest.param("instance_type: c5.large, zone: b", "c5.large is offered only in a/on-demand", id="none there"),
    ],
)  # fmt: skip
def test_which_offering_a_node_group_means(tmp_path: Path, fields: str, expected: tuple[object, ...] | str) -> None:
    (tmp_path / "zoned.csv").write_text(ZONED)
    text = f"catalogue: zoned.csv\nprovisioners: [{{name: p, node_groups: [{{id: g, {fields}}}]}}]"
    if isinstance(expected, str):
        (problem,) = problems(text, tmp_path)
        assert problem.startswith(f"provisioners[0].node_groups[0]: {expected}")
    else:
        (group,) = parse(text, tmp_path).groups
        assert (group.zone, group.capacity_type, group.price_usd_per_hour, group.max_size) == expected


def test_options_of_the_file_the_provisioner_and_the_group_field_by_field() -> None:
    settings = parse(
        """
        autoscaling: {scale_down_unneeded_time: 60s, scale_down_utilization_threshold: 0.7}
        provisioners:
          - name: p
            autoscaling: {scale_down_unneeded_time: 1m30s}
            node_groups:
              - {id: g, instance_type: m7i.large}
              - {id: h, instance_type: m7i.large, max_size: 8, autoscaling: {zero_or_max_node_scaling: true}}
        """
    )
    common = {"scale_down_utilization_threshold": 0.7, "scale_down_unneeded_seconds": 90}
    assert settings.options == {
        "g": AutoscalingOptions(**common),  # type: ignore[arg-type]
        "h": AutoscalingOptions(**common, zero_or_max_node_scaling=True),  # type: ignore[arg-type]
    }
    assert "kubernetes/autoscaler#10245" in settings.warnings[-1], "what CA makes of any option is said"


def test_node_groups_of_a_recording_with_weights_by_configuration() -> None:
    recordings = Path(__file__).parents[2] / "cagrpc" / "data" / "recordings"
    settings = parse(
        """
        provisioners:
          - name: first
            weight: 10
            node_groups: [{file: three-deployments.groups.json, ids: [m7g.xlarge]}]
          - name: second
            node_groups: [{file: three-deployments.groups.json, ids: [m7i.large, m7i.4xlarge]}]
        """,
        recordings,
    )
    assert [(g.id, g.weight, g.provisioner) for g in settings.groups] == [
        ("m7g.xlarge", 10, "first"), ("m7i.large", 0, "second"), ("m7i.4xlarge", 0, "second"),
    ]  # fmt: skip
    recorded = {"cpu": 3920, "memory": 14_103 * MIB, "pods": 58}
    assert settings.groups[0].allocatable == {**recorded, "ephemeral-storage": 17 * 1024 * MIB}


def test_provisioners_in_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "p.yaml").write_text("name: q\nnode_groups: [{file: g.json}]")
    (tmp_path / "more" / "g.json").write_text(
        '{"groups": {"r": {"cpu_milli": 1, "memory_mib": 1, "pods": 1, "price": 1}}}'
    )
    (tmp_path / "c.yaml").write_text("provisioners: [{file: more/p.yaml}]")
    assert [group.id for group in load_settings(tmp_path / "c.yaml").groups] == ["r"]


def test_a_file_of_provisioners_named_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: q\nnode_groups: [{id: g, instance_type: m7i.large}]")
    assert [group.id for group in load_provisioners([path, path], embedded_catalogue()).groups] == ["g"]


def test_behaviours_of_the_simulation() -> None:
    settings = parse(GROUP + "backend: {simulated: {'*': {boot: 1s}, g: {stock: 3}, m7i.xlrge: {stock: 0}}}")
    assert isinstance(settings.backend, OpenedLater)
    assert isinstance(settings.backend.settings, SimulatedSettings)
    assert settings.backend.settings.behaviours == {
        "*": Behaviour(boot_seconds=1.0),
        "g": Behaviour(stock=3),
        "m7i.xlrge": Behaviour(stock=0),
    }
    assert settings.warnings == (
        'backend.simulated["m7i.xlrge"]: is neither a node group nor an instance type; did you mean "m7i.xlarge"?',
    )


def test_the_default_configuration(tmp_path: Path) -> None:
    settings = load_default_settings(tmp_path)
    assert not settings.warnings
    tiers = {group.id: group.weight for group in settings.groups}
    assert (tiers["m7i.large"], tiers["m7i.4xlarge"], tiers["m7g.xlarge"]) == (100, 100, 50)
    burst = [group for group in settings.groups if group.weight == 10]
    assert len(burst) > 100
    assert all(group.provisioner == "burst" for group in burst)
    shown = settings.shown(settings.groups, {})
    assert len(shown) == 50
    assert {"m7i.large", "m7i.4xlarge", "m7g.xlarge"} <= set(shown)
    assert {limit.name for limit in settings.limits} == {"provisioner arm64", "provisioner burst", "cluster"}
    assert settings.state_directory == tmp_path / ".cagrpc"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"no\.yaml: cannot be read: No such file or directory"):
        load_settings(tmp_path / "no.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(InvalidConfiguration, match=r"latin\.yaml: is not UTF-8 text \(byte 3\)"):
        load_settings(tmp_path / "latin.yaml")


def test_an_address_of_a_flag() -> None:
    assert parse_address("[::1]:80") == Address("::1", 80)
    with pytest.raises(InvalidInput, match='address: found "80", expected host:port'):
        parse_address("80")


def test_provisioning_requests_are_served_where_there_is_a_cluster(tmp_path: Path) -> None:
    assert parse(GROUP, tmp_path).requests is None
    cluster = f"{GROUP}\nkubernetes: {{in_cluster: true}}\n"
    assert parse(cluster, tmp_path).requests == RequestSettings()
    section = "provisioning_requests: {booking: 30s, keep: 1h, upstream_classes: [atomic-scale-up]}\n"
    assert parse(cluster + section, tmp_path).requests == RequestSettings(30, 3600, frozenset({ClassBehaviour.ATOMIC}))
    few = "provisioning_requests: {per_namespace: {requests: 5, pods: 100, bypassed: 1m}}\n"
    assert parse(cluster + few, tmp_path).requests == RequestSettings(per_namespace=NamespaceSettings(5, 100, 60))
    with pytest.raises(InvalidConfiguration, match=r"provisioning_requests\.per_namespace\.pods"):
        parse(f"{cluster}provisioning_requests: {{per_namespace: {{pods: 0}}}}\n", tmp_path)
    assert parse(f"{cluster}provisioning_requests: {{enabled: false}}\n", tmp_path).requests is None
    with pytest.raises(InvalidConfiguration, match=r"provisioning_requests\.upstream_classes\[0\]"):
        parse(f"{cluster}provisioning_requests: {{upstream_classes: [best-effort]}}\n", tmp_path)


def test_all_or_nothing_scaling_by_ca_needs_a_maximum(tmp_path: Path) -> None:
    group = "{id: g, instance_type: m7i.large, autoscaling: {zero_or_max_node_scaling: true}%s}"
    provisioners = "provisioners: [{name: p, %s node_groups: [" + group + "]}]\n"
    with pytest.raises(InvalidConfiguration) as caught:
        parse(provisioners % ("", ""), tmp_path)
    (problem,) = caught.value.problems
    assert problem == (
        'zero_or_max_node_scaling of node group "g": CA asks for the whole of its maximum at once, and it has none;'
        " give it max_size, or its provisioner limits"
    )
    assert parse(provisioners % ("", ", max_size: 3"), tmp_path).groups[0].max_size == 3
    assert parse(provisioners % ("limits: {nodes: 4},", ""), tmp_path).groups
