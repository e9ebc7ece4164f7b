"""The fields of the backend in the configuration file. The client of gRPC is imported when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from cagrpc.backends.plugin import BackendPlugin, Configured, Inventory, OpenedLater
from cagrpc.errors import InvalidConfiguration
from cagrpc.forms import Duration, File, Form, Section
from cagrpc.runtime.loopback import is_loopback

PLACE = "backend.externalgrpc"


@dataclass(frozen=True, slots=True)
class ClientTls(Section):
    """mTLS, as the cluster-autoscaler has it in its cloud-config. The files are read again when they change."""

    certificate: File
    """The client's certificate."""
    key: File
    ca: File
    """The authority that must have signed the provider's certificate, which carries the host of `address`."""


@dataclass(frozen=True, slots=True)
class ProviderAccess(Section):
    """A provider that speaks the cluster-autoscaler's externalgrpc protocol."""

    address: Annotated[str, Field(pattern=r"^[^\s/]+:\d{1,5}$")]
    """`host:port`."""
    name: str = ""
    """What it is called in messages. The default is its address."""
    tls: ClientTls | None = None
    """Needed but on a loopback address."""
    timeout_seconds: Annotated[float, Duration("100ms", "5m", '"20s"')] = 20.0
    """How long a call that only reads may take."""
    order_timeout_seconds: Annotated[float, Duration("100ms", "9m", '"1m"')] = 60.0
    """How long a call that creates or deletes may take. The provider goes on with it all the same, so after this it is
    in doubt whether it was carried out."""
    behind_seconds: Annotated[float, Duration("0s", "9m", '"90s"')] = 90.0
    """How long what the provider tells may be behind what it was asked: its caches, and calls that go on after their
    timeout. An increase in doubt is settled by then, a target that stays too low for so long is a shortage, and an
    instance that is not listed for so long is gone. AWS and GCE have caches of a minute, Azure of five."""
    list_every_seconds: Annotated[float, Duration("1s", "5m", '"10s"')] = 10.0
    """How often it is asked for its groups, targets and instances. The shortest of several providers counts."""
    node_id_prefix: str = ""
    """What the ids of Nodes begin with where the provider lists them without: `verda://`."""

    def __post_init__(self) -> None:
        host = self.address.rpartition(":")[0].strip("[]")
        if self.tls is None and not is_loopback(host):
            raise ValueError(
                f'address: found "{self.address}" without tls, expected a loopback address, or tls: {{certificate, key,'
                " ca}"
            )

    @property
    def called(self) -> str:
        """Return what it is called in messages."""
        return self.name or self.address


def _as_list(written: Any) -> Any:
    return [written] if isinstance(written, Mapping) else written


class ExternalGrpcFields(Form):
    """In the section `backend`."""

    externalgrpc: (
        Annotated[
            tuple[ProviderAccess, ...],
            BeforeValidator(_as_list, json_schema_input_type=ProviderAccess | list[ProviderAccess]),
        ]
        | None
    ) = None
    """Nodes come from one provider of the cluster-autoscaler's externalgrpc protocol, or from each of a list. Node
    groups are theirs; provisioners take them in by `groups`, or by labels, taints and requirements."""


class ExternalGrpcPlugin(BackendPlugin):
    name = "externalgrpc"
    backend_fields = ExternalGrpcFields
    kubernetes_fields = None
    finds_node_groups = True

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        del kubernetes, directory
        assert isinstance(backend, ExternalGrpcFields)
        providers = backend.externalgrpc or ()
        called = [each.called for each in providers]
        problems = [] if providers else [f"{PLACE}: found none, expected an address"]
        problems += [f'{PLACE}: "{name}" is given twice' for name in sorted({n for n in called if called.count(n) > 1})]
        if inventory.groups:
            named = inventory.groups[0]
            problems.append(
                f'provisioners: found node group "{named.id}" of "{named.provisioner}", but the provider has the node'
                " groups; remove node_groups, and say by `groups` which of the provider's it takes in"
            )
        if problems:
            raise InvalidConfiguration(problems)
        return Configured(OpenedLater("cagrpc.backends.externalgrpc.backend", providers))
