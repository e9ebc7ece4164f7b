"""Karpenter documents as provisioners: karpenter.sh/v1 (and v1beta1) NodePool, karpenter.sh/v1alpha5 Provisioner.

Weight, requirements, labels, taints, limits and (of a NodePool) disruption are read. Fields for Karpenter itself
(expiry, node classes, kubelet settings) are ignored; any other field is an error, since a misspelt requirement would
allow every instance type. Weights as in the provisioner-priority design: 1 to 100, none is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from cagrpc.controllers.settings import ProvisionerDisruption
from cagrpc.fleet.fields import (
    Labels,
    Limits,
    ObjectName,
    RequirementForm,
    Requirements,
    Taints,
    Weight,
)
from cagrpc.fleet.provisioners import NODEPOOL_LABEL, PROVISIONER_NAME_LABEL, Provisioner
from cagrpc.forms import Form

V1, V1BETA1, V1ALPHA5 = "karpenter.sh/v1", "karpenter.sh/v1beta1", "karpenter.sh/v1alpha5"
SUPPORTED = f'"{V1}" or "{V1BETA1}" with kind "NodePool", or "{V1ALPHA5}" with kind "Provisioner"'
UNREAD_KINDS = ("EC2NodeClass", "AWSNodeTemplate", "NodeClass", "NodeOverlay", "NodeClaim", "Machine")
"""Kinds beside provisioners in Karpenter's own files, which are ignored with a warning."""

Ignored = Annotated[Any, Field(exclude=True)]
"""A field that only Karpenter reads."""

OptionalLabels = Annotated[Labels, BeforeValidator(lambda value: {} if value is None else value)]
OptionalLimits = Annotated[Limits, BeforeValidator(lambda value: {} if value is None else value)]


class Document(Form):
    """Fields are written as in Kubernetes: `startupTaints`."""

    model_config = ConfigDict(alias_generator=AliasGenerator(alias=to_camel))


class Metadata(BaseModel):
    """ObjectMeta; only the name matters."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    name: ObjectName


class KarpenterRequirement(RequirementForm):
    min_values: Annotated[int | None, Field(alias="minValues")] = None


KarpenterRequirements = Annotated[
    list[KarpenterRequirement], BeforeValidator(lambda value: [] if value is None else value)
]


class TemplateMetadata(Document):
    labels: OptionalLabels = Field(default_factory=dict)
    annotations: Ignored = None


class TemplateSpec(Document):
    requirements: KarpenterRequirements = Field(default_factory=list)
    taints: Taints = ()
    startup_taints: Taints = ()
    node_class_ref: Ignored = None
    expire_after: Ignored = None
    termination_grace_period: Ignored = None
    kubelet: Ignored = None
    resources: Ignored = None


class NodePoolTemplate(Document):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: TemplateSpec


@dataclass(frozen=True, slots=True)
class NodePoolDisruption(ProvisionerDisruption):
    """`spec.disruption`, in the words of karpenter.sh/v1 and v1beta1."""

    __pydantic_config__ = Document.model_config
    expire_after: Ignored = field(default=None, compare=False)


class NodePoolSpec(Document):
    template: NodePoolTemplate
    weight: Weight | None = None
    limits: OptionalLimits = Field(default_factory=dict)
    disruption: NodePoolDisruption | None = None
    replicas: Any = None

    @field_validator("replicas")
    @classmethod
    def _not_static(cls, value: Any) -> Any:
        if value is not None:
            raise ValueError(
                f"found {value}: a static NodePool (replicas) is not served; give a provisioner in cagrpc's own form "
                "with node_groups whose min_size is that number"
            )
        return value


class NodePool(Document):
    """karpenter.sh/v1 and v1beta1 NodePool."""

    api_version: Literal["karpenter.sh/v1", "karpenter.sh/v1beta1"]
    kind: Literal["NodePool"]
    metadata: Metadata
    spec: NodePoolSpec
    status: Ignored = None

    def provisioner(self) -> Provisioner:
        """Return the fleet's value."""
        template = self.spec.template
        return Provisioner(
            name=self.metadata.name,
            weight=self.spec.weight or 0,
            requirements=tuple(form.requirement() for form in template.spec.requirements),
            labels=dict(template.metadata.labels),
            taints=template.spec.taints,
            startup_taints=template.spec.startup_taints,
            limits=self.spec.limits,
            name_label=NODEPOOL_LABEL,
        )

    def warnings(self) -> Sequence[str]:
        """Return warnings, each beginning with its path in the document."""
        return [
            f"spec.template.spec.requirements[{i}].minValues: is ignored; each increment is planned by cost alone"
            for i, form in enumerate(self.spec.template.spec.requirements)
            if form.min_values is not None
        ]


class V1Alpha5Limits(Document):
    resources: OptionalLimits = Field(default_factory=dict)


class ProvisionerSpec(Document):
    requirements: Requirements = ()
    labels: OptionalLabels = Field(default_factory=dict)
    taints: Taints = ()
    startup_taints: Taints = ()
    weight: Weight | None = None
    limits: V1Alpha5Limits | None = None
    annotations: Ignored = None
    kubelet_configuration: Ignored = None
    provider: Ignored = None
    provider_ref: Ignored = None
    ttl_seconds_after_empty: Ignored = None
    ttl_seconds_until_expired: Ignored = None
    consolidation: Ignored = None


class ProvisionerV1Alpha5(Document):
    """karpenter.sh/v1alpha5 Provisioner."""

    api_version: Literal["karpenter.sh/v1alpha5"]
    kind: Literal["Provisioner"]
    metadata: Metadata
    spec: ProvisionerSpec
    status: Ignored = None

    def provisioner(self) -> Provisioner:
        """Return the fleet's value."""
        spec = self.spec
        return Provisioner(
            name=self.metadata.name,
            weight=spec.weight or 0,
            requirements=spec.requirements,
            labels=dict(spec.labels),
            taints=spec.taints,
            startup_taints=spec.startup_taints,
            limits=spec.limits.resources if spec.limits else {},
            name_label=PROVISIONER_NAME_LABEL,
        )
