"""The section `expander`: whether it decides, and what is known of node groups that the autoscaler has from a cloud
provider of its own."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from cagrpc.controllers.settings import AnswerRules, AutoscalerConfigMapSettings, BatchSettings, ExpanderMode
from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.fleet.prices import PriceRule
from cagrpc.forms import FilePath, Form

_FIRST_WITH_VETOES = 32
_Shares = Annotated[dict[str, Annotated[float, Field(gt=0, le=1000)]], Field(min_length=1)]


class ExpanderForm(Form):
    """What the cluster-autoscaler is answered."""

    mode: ExpanderMode = ExpanderMode.DECIDE
    """Whether the expander decides, or answers all options and records what it would have chosen."""
    prices: FilePath | None = None
    """A CSV file of what nodes cost: the columns instance_type, usd_per_hour and, where they matter, zone and
    capacity_type. Where it has no row the catalogue's price applies."""
    price_rule: PriceRule = Field(default_factory=PriceRule)
    """Prices a node by its CPU, memory and GPUs where neither the table nor the catalogue has a price."""
    spread: Literal["even"] | _Shares | None = None
    """Whether scale-ups are shared out over node groups of one weight that cost about the same (within 5 %): `even`, or
    shares by regular expressions over ids. The default is that the cheapest is chosen."""
    batch: BatchSettings | None = None
    """How long the autoscaler waits for pods that come together. The default is that it does not wait. It takes
    cluster-autoscaler 1.32 or newer."""
    veto_partial_gangs: bool = False
    """Whether options of another cloud provider's groups are vetoed where each would serve a part of a gang and nothing
    else. The default is that the autoscaler's next expander decides. It takes cluster-autoscaler 1.32 or newer."""
    autoscaler_version: Annotated[str, Field(pattern=r"^v?1\.[0-9]{1,3}(\.[0-9]{1,3})?$")] | None = None
    """The autoscaler's version, such as 1.33. Up to 1.31 an empty answer is no veto: it makes CA choose at random, so
    none is given to one that may be as old. Requests show when it is 1.35 or newer; otherwise it is said here."""
    config_maps: AutoscalerConfigMapSettings | None = None
    """Which ConfigMaps of the cluster-autoscaler are read, for sizes, back-offs and priorities of its node groups. The
    default is none; `{}` reads those in kube-system. It takes `kubernetes`, and rights to read them."""

    @field_validator("spread")
    @classmethod
    def _of_patterns(cls, written: str | dict[str, float] | None) -> str | dict[str, float] | None:
        for source in written if isinstance(written, dict) else ():
            GroupPattern(source)  # raises ValueError
        return written

    def _shares(self) -> tuple[tuple[GroupPattern, float], ...]:
        if self.spread is None:
            return ()
        shares = {"": 1.0} if isinstance(self.spread, str) else self.spread
        return tuple((GroupPattern(source), share) for source, share in shares.items())

    @model_validator(mode="after")
    def _vetoes_are_known(self) -> Self:
        asked = [name for name in ("batch", "veto_partial_gangs") if getattr(self, name)]
        if asked and self.autoscaler_version is not None and not self._knows_vetoes:
            raise ValueError(
                f'autoscaler_version: found "{self.autoscaler_version}" with {" and ".join(asked)}, expected 1.32 or'
                " newer; an older one takes an empty answer for a choice at random"
            )
        return self

    @property
    def _knows_vetoes(self) -> bool:
        version = self.autoscaler_version
        return version is not None and int(version.split(".")[1]) >= _FIRST_WITH_VETOES

    def rules(self) -> AnswerRules:
        """Return what is answered."""
        return AnswerRules(
            self.mode, self._shares(), self.batch, self.veto_partial_gangs, knows_vetoes=self._knows_vetoes
        )
