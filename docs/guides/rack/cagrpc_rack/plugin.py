"""The field `rack` in the section `backend`."""

from dataclasses import dataclass
from pathlib import Path

from cagrpc.backends.plugin import BackendContext, BackendPlugin, Configured, Inventory, OpenBackend
from cagrpc.errors import InvalidConfiguration
from cagrpc.forms import File, Form, Section


@dataclass(frozen=True, slots=True)
class Rack(Section):
    """A rack whose controller is asked by files."""

    spool: File
    """The directory that is shared with the controller."""
    fleet: str = "cagrpc"
    """Ours among the fleets that use the rack."""

    def open(self, context: BackendContext) -> OpenBackend:
        from cagrpc_rack.backend import RackBackend

        return OpenBackend(RackBackend(self.spool, self.fleet, context.clock), close=lambda: None)


class RackFields(Form):
    rack: Rack | None = None
    """Machines of a rack."""


class RackPlugin(BackendPlugin):
    name = "rack"
    backend_fields = RackFields
    kubernetes_fields = None

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        del kubernetes, directory, inventory  # it has no fields there, and needs none of them
        assert isinstance(backend, RackFields)
        written = backend.rack
        if written is None:
            raise InvalidConfiguration(["backend.rack: found null, expected the field spool"])
        if not written.spool.is_dir():
            raise InvalidConfiguration([f"backend.rack.spool: found {written.spool}, expected a directory"])
        return Configured(written)


PLUGIN = RackPlugin()
