"""ModelCache: a model that Macs keep on their disks. Users write ``spec``, the operator writes ``status``.

The weights of a ModelDeployment are a ModelCache that it owns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from thunderfleet_crds import uris
from thunderfleet_crds.kinds.nodeprofile import Model
from thunderfleet_crds.meta.apimodel import ApiModel, ObjectMeta
from thunderfleet_crds.meta.conditions import Condition
from thunderfleet_crds.meta.fields import (
    Count,
    FolderUri,
    Int64,
    LabelValue,
    Message,
    Name,
    ReasonText,
    SecretName,
    Sha256,
    Time,
    Token,
    Word,
)
from thunderfleet_crds.vocabulary import ConditionType, CopySource
from thunderfleet_crds.weights.copies import MacCopy
from thunderfleet_crds.weights.parts import MAX_PARTS, ManyRanges, Ranges, WeightFile
from thunderfleet_crds.weights.quantization import Quantize, kept_name

CONDITION_TYPES: Final = (
    ConditionType.RESOLVED,
    ConditionType.FETCHED,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
)
MAX_MACS: Final = 1024
REPOSITORY_RULE: Final = (
    "self.matches('^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$') && !self.contains('--') && "
    "!self.contains('..')"
)


class ModelCacheSpec(ApiModel):
    """The model, and how many Macs keep it."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "has(self.repository) != has(self.uri)",
                    "message": "set exactly one of repository (on the Hugging Face Hub) and uri (on a server)",
                },
                {
                    "rule": "has(self.uri) == has(self.sha256)",
                    "message": "uri and sha256 belong together: sha256 is the hash of the file SHA256SUMS at the URI",
                },
                {
                    "rule": "!has(self.uri) || (!has(self.tokenSecret) && (!has(self.revision) || self.revision == 'main'))",
                    "message": "revision and tokenSecret are for a repository: sha256 is the version of a URI, and no token is "
                    "sent to it",
                },
                {
                    "rule": "!has(self.quantize) || has(self.repository)",
                    "message": "quantize needs a repository: the files at a URI are used as they are",
                },
            ]
        }
    )

    repository: Name | None = Field(
        default=None,
        description="Repository on the Hugging Face Hub, such as mlx-community/Qwen3-30B-A3B-4bit.",
        json_schema_extra={
            "x-rule": REPOSITORY_RULE,
            "x-message": "repository must have the form owner/name, or name alone, with letters, digits, '.', '_' and '-', "
            "without '--' and '..'",
        },
    )
    uri: FolderUri | None = Field(
        default=None,
        description="Folder on a server with the model's files and a file SHA256SUMS that lists them, such as "
        "https://models.example.com/qwen3-8b-4bit/. The chart's value uris.hosts lists the hosts from which Macs "
        "may fetch models.",
    )
    sha256: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the file SHA256SUMS at the URI. All files are verified against it, so the model cannot change.",
    )
    revision: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        default="main",
        description="Branch, tag or full hash of a commit. It is resolved to a commit once, and again when the spec changes.",
    )
    token_secret: SecretName | None = Field(
        default=None,
        description="Name of a Secret in the same namespace, with a token of the hub under the key token, for gated and "
        "private repositories. Only the pods that read from the hub mount it.",
    )
    quantize: Quantize | None = Field(
        default=None,
        description="If set, the weights are quantized once, with mlx-lm in a pod on one Mac; other Macs copy the result. "
        "The repository "
        "must have weights in safetensors that are not quantized.",
    )
    copies: Annotated[int, Field(ge=0, le=MAX_MACS)] | None = Field(
        default=None,
        description="Number of Macs that keep the model; more keep it if its ModelDeployment needs more. If unset: every Mac "
        "that nodeSelector selects, or one Mac if that is empty.",
    )
    node_selector: Annotated[Mapping[str, LabelValue], Field(max_length=32)] = Field(
        default={}, description="Labels that a Node must have to keep the model."
    )


class QuantizedFrom(ApiModel):
    """The repository that is quantized. One Mac reads its files and does not keep them."""

    commit: Token = Field(description="Commit of the repository that the revision was resolved to.")
    manifest: Token = Field(description="SHA-256 of the manifest of the commit's files.")
    bytes: Int64 = Field(description="Size of these files in bytes.")
    quantized_bytes: Int64 = Field(description="Expected size of the quantized weights in bytes.")
    node: Name | None = Field(default=None, description="Name of the Node on which the pod quantizes the repository.")
    mlx_lm: Word | None = Field(default=None, description="Version of mlx-lm that quantized it.")
    lost_since: Time | None = Field(
        default=None,
        description="Time since which no Ready Mac has had the quantized files. If that persists, the repository is quantized "
        "again.",
    )


class Assignment(ApiModel):
    """A Mac that must have the model. Its agent fetches the files."""

    node: Name = Field(description="Name of the Node.")
    source: CopySource = Field(
        description="Hub for the one Mac on which a pod downloads the files, Peer for those that copy them from other Macs."
    )
    no_source_since: Time | None = Field(
        default=None,
        description="Time since which the Mac cannot connect to any Mac that has the model, although at least one has it.",
    )
    layers: Ranges | None = Field(
        default=None, description="Layers whose files the Mac needs, such as 0-13; unset if it needs no part of the model."
    )
    files: ManyRanges | None = Field(
        default=None,
        description="Numbers of the files that the Mac needs, in the order of the manifest, such as "
        "0-3,7; unset if it needs all.",
    )


class Download(ApiModel):
    """The pods that read from the hub."""

    node: Name | None = Field(default=None, description="Name of the Node of the newest pod.")
    attempts: Count = Field(default=0, description="Number of pods that failed since the last success.")
    next_time: Time | None = Field(default=None, description="Time of the next attempt, after a failure.")
    reason: ReasonText | None = Field(default=None, description="Machine-readable reason of the last failure in CamelCase.")
    message: Message = Field(default="", description="Human-readable description of the last failure.")


class ModelCacheStatus(ApiModel):
    """The observed state. Only the operator writes it."""

    observed_generation: Int64 | None = Field(
        default=None, description="The metadata.generation that the operator has observed."
    )
    resolved_from: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="What the commit was resolved from: repository@revision, or a URI and a hash."
    )
    commit: Token | None = Field(
        default=None,
        description="Commit of the repository that the revision was resolved to. With spec.quantize, a hash of the quantized "
        "files and their source; with spec.uri, the value of spec.sha256.",
    )
    quantized_from: QuantizedFrom | None = Field(
        default=None, description="The repository that is quantized, if spec.quantize is set."
    )
    manifest: Token | None = Field(
        default=None, description="SHA-256 of the manifest: the model's files with sizes and hashes."
    )
    files: Count | None = Field(default=None, description="Number of files.")
    bytes: Int64 | None = Field(default=None, description="Size of the files in bytes.")
    model: Model | None = Field(
        default=None, description="Sizes that placement needs, computed from the headers of the weight files on the hub."
    )
    weight_files: Annotated[tuple[WeightFile, ...], Field(max_length=MAX_PARTS)] = Field(
        default=(),
        description="Weight files and the layers in each, from which the files of a Mac are chosen; empty if Macs can "
        "have only the whole model.",
        json_schema_extra={"x-list-keys": ["file"]},
    )
    no_parts: Message = Field(
        default="", description="Why Macs can have only the whole model; empty if they can have parts of it."
    )
    token_accepted: Annotated[str, Field(max_length=253)] | None = Field(
        default=None, description="Name of the Secret whose token the hub has accepted; unset if none was needed."
    )
    assignments: Annotated[tuple[Assignment, ...], Field(max_length=MAX_MACS)] = Field(
        default=(),
        description="Macs that the operator has chosen to keep the model.",
        json_schema_extra={"x-list-keys": ["node"]},
    )
    macs: Annotated[tuple[MacCopy, ...], Field(max_length=MAX_MACS)] = Field(
        default=(),
        description="The model's files on each of these Macs. Updated at most every 5 seconds.",
        json_schema_extra={"x-list-keys": ["node"]},
    )
    download: Download | None = Field(default=None, description="The pods that read from the hub.")
    size: Word | None = Field(default=None, description="Size of the files, for display.")
    copies: Word | None = Field(default=None, description="Complete and desired copies, such as 1/2, for display.")
    progress: Message | None = Field(default=None, description="Progress of the copies, for display.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions: Resolved and Fetched. Reconciling is True while files are missing, Stalled is True when a "
        "user must "
        "change something.",
        json_schema_extra={"x-list-keys": ["type"]},
    )


class ModelCache(ApiModel):
    """ModelCache keeps a model from the Hugging Face Hub, or from another server, on the disks of Macs."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')",
                    "message": "metadata.name must have at most 40 characters of [a-z0-9-], start with a letter and end with a "
                    "letter or digit (pods are named after it)",
                }
            ]
        }
    )

    api_version: Literal["thunderfleet.io/v1alpha1"] = "thunderfleet.io/v1alpha1"
    kind: Literal["ModelCache"] = "ModelCache"
    metadata: ObjectMeta
    spec: ModelCacheSpec = Field(description="Desired state of the ModelCache.")
    status: ModelCacheStatus = Field(default=ModelCacheStatus(), description="Observed state of the ModelCache.")

    @property
    def kept_as(self) -> str:
        """The name of the repository under which Macs keep the files."""
        spec = self.spec
        return uris.kept_name(spec.uri) if spec.uri is not None else kept_name(spec.repository or "", spec.quantize)
