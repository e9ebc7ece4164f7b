"""The section `kueue`: the admission check controller."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cagrpc.controllers.settings import KueueSettings, RetryMode
from cagrpc.forms import Form


class Kueue(Form):
    """The admission check controller for Kueue, in a cluster that has it."""

    enabled: bool = True
    """Whether AdmissionChecks are answered; with `kubernetes`."""
    controller_name: Annotated[str, Field(min_length=1, max_length=253)] = "cagrpc.io/provisioning-request"
    """AdmissionChecks with this controllerName are answered, and those with ProvisioningRequestController. Kueue's own
    name, kueue.x-k8s.io/provisioning-request, is refused where Kueue's own controller runs."""
    retry_mode: Literal["release", "keep"] = "release"
    """Between two attempts a Workload loses its quota (`release`: the check is Retry) or keeps it (`keep`: Pending)."""

    def settings(self) -> KueueSettings | None:
        """Return the settings; None where AdmissionChecks are not answered."""
        return KueueSettings(self.controller_name, RetryMode(self.retry_mode)) if self.enabled else None
