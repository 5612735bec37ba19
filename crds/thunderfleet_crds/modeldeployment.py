"""ModelDeployment: a model, served across Macs. What people write (spec), and what became of it (status).

Every field but ``spec.model`` has a default: the ten-line manifest is the normal one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from thunderfleet_crds.apimodel import ApiModel, ObjectMeta
from thunderfleet_crds.conditions import Condition
from thunderfleet_crds.fields import (
    UUID,
    Address,
    Count,
    HostPort,
    Int64,
    LabelValue,
    Message,
    Name,
    Path,
    Percent,
    Port,
    Quantity,
    ReasonText,
    Time,
    Token,
    Url,
    Word,
)
from thunderfleet_crds.names import MAX_GROUPS, MAX_NAME_LENGTH, MAX_RANKS
from thunderfleet_crds.vocabulary import (
    ConditionType,
    FaultClass,
    GroupPhase,
    PlacedSplit,
    PlacedTransport,
    RankPhase,
    RequestedSplit,
    RequestedTransport,
    Split,
    TaintEffect,
    TolerationOperator,
    Transport,
)

CONDITION_TYPES: Final = (
    ConditionType.MODEL_RESOLVED,
    ConditionType.PLACED,
    ConditionType.BOOTSTRAPPED,
    ConditionType.READY,
    ConditionType.BENCHMARKED,
    ConditionType.DEGRADED,
)

DURATION_PATTERN: Final = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
LABEL_KEY_MAX_LENGTH: Final = 317


class ModelSource(ApiModel):
    """Which model; exactly one of repository and path."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "has(self.repository) != has(self.path)",
                    "message": "model names exactly one of repository (on the hub) and path (on the nodes)",
                }
            ]
        }
    )

    repository: Name | None = Field(
        default=None,
        description="Repository on the hub, such as mlx-community/Qwen3-30B-A3B-4bit.",
        json_schema_extra={
            "x-rule": "self.matches('^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$')",
            "x-message": "repository is written owner/name, with letters, digits, '.', '_' and '-'",
        },
    )
    path: Path | None = Field(
        default=None,
        description="Absolute path of the model's folder on the nodes.",
        json_schema_extra={
            "x-rule": "self.startsWith('/') && !self.contains('/../') && !self.endsWith('/..')",
            "x-message": "path is the absolute path of a folder on the nodes, begins with '/' and has no '..' in it",
        },
    )
    revision: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        default="main", description="Branch, tag or commit of the repository."
    )


class Toleration(ApiModel):
    """A taint that this model's nodes may have."""

    key: Annotated[str, Field(max_length=LABEL_KEY_MAX_LENGTH)] | None = Field(
        default=None, description="Key of the taint; unset with operator Exists: every taint."
    )
    operator: TolerationOperator = Field(
        default=TolerationOperator.EQUAL, description="Exists, or Equal to the value (the default)."
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint, for operator Equal.")
    effect: TaintEffect | None = Field(default=None, description="Effect of the taint; unset: every effect.")


class Nodes(ApiModel):
    """Which Macs, and how many, one group may take."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "!has(self.max) || self.max >= self.min",
                    "message": "nodes.max is at least nodes.min, or unset for no bound",
                }
            ]
        }
    )

    min: Annotated[int, Field(ge=1, le=MAX_RANKS)] = Field(default=1, description="Fewest Macs of one group.")
    max: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = Field(
        default=None, description="Most Macs of one group; unset: no bound."
    )
    selector: Annotated[Mapping[str, LabelValue], Field(max_length=32)] = Field(
        default={}, description="Labels that the Nodes must have."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        default=(), description="Taints that the Nodes may have; the taint of Macs is always tolerated."
    )


class Memory(ApiModel):
    """What is reserved beside the weights, and what the gateway admits."""

    context_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        default=32768, description="Longest sequence (prompt and answer) of one request in tokens."
    )
    concurrent_requests: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=4, description="Requests that are generated at the same time."
    )
    cached_tokens: Count = Field(default=65536, description="Tokens of past prompts kept in the prompt cache.")
    headroom_percent: Percent = Field(default=10, description="Share kept free on top of what is reserved, in percent.")


class Server(ApiModel):
    """The OpenAI-compatible endpoint."""

    port: Port | None = Field(default=None, description="Port of the endpoint; unset: the operator picks one.")
    api_key_secret: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None,
        description="Secret in the same namespace; every value in it is an accepted API key. Unset: none is asked for.",
    )


class Bootstrap(ApiModel):
    """How hard the ranks try to become a group."""

    attempts: Annotated[int, Field(ge=1, le=32)] = Field(default=8, description="Attempts before a new placement.")
    attempt_timeout_seconds: Annotated[int, Field(ge=5, le=3600)] = Field(
        default=60, description="Seconds that one attempt's initialisation may take."
    )
    ring_without_relay: bool = Field(
        default=False,
        description="Allow ring traffic unencrypted over a LAN; whoever reaches the ring's ports can run code there.",
    )


class Recovery(ApiModel):
    """What happens when a group breaks."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "self.backoffLimitSeconds >= self.backoffSeconds",
                    "message": "recovery.backoffLimitSeconds is at least recovery.backoffSeconds",
                }
            ]
        }
    )

    max_restarts: Count = Field(default=10, description="New placements before it is given up.")
    backoff_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=10, description="Seconds before the first new placement; doubled each time."
    )
    backoff_limit_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=300, description="Seconds that the wait grows to at most."
    )


class BenchmarkSpec(ApiModel):
    """What is measured through the served path."""

    prompt_tokens: Annotated[int, Field(ge=1, le=1048576)] = Field(default=512, description="Tokens of the prompt.")
    generation_tokens: Annotated[int, Field(ge=1, le=1048576)] = Field(default=128, description="Tokens generated.")
    every: Annotated[str, Field(max_length=24, pattern=DURATION_PATTERN)] = Field(
        default="24h",
        description="How often, when idle: a duration such as 24h or 1h30m, at least 1m.",
        json_schema_extra={
            "x-rule": f"self.matches('{DURATION_PATTERN}') && self != '' && duration(self) >= duration('1m')",
            "x-message": "every is a duration of hours, minutes and seconds such as 24h or 1h30m, at least 1m",
        },
    )


class ModelDeploymentSpec(ApiModel):
    """What to serve, and how; everything but the model has a default, and every change rolls out."""

    model: ModelSource = Field(description="Which model: exactly one of repository and path.")
    replicas: Annotated[int, Field(ge=0, le=MAX_GROUPS)] = Field(
        default=1, description="Number of independent groups that serve the model."
    )
    nodes: Nodes = Field(default=Nodes(), description="Which Macs, and how many, one group may take.")
    parallelism: RequestedSplit = Field(default=Split.AUTO, description="How the model is split: Auto, Tensor, Pipeline.")
    transport: RequestedTransport = Field(
        default=Transport.AUTO, description="What ranks talk over: Auto, JACCL, JACCLRing or Ring."
    )
    memory: Memory = Field(default=Memory(), description="What is reserved beside the weights.")
    server: Server = Field(default=Server(), description="The OpenAI-compatible endpoint.")
    bootstrap: Bootstrap = Field(default=Bootstrap(), description="How hard the ranks try to become a group.")
    recovery: Recovery = Field(default=Recovery(), description="What happens when a group breaks.")
    benchmark: BenchmarkSpec = Field(default=BenchmarkSpec(), description="What is measured when Ready.")


class LayerRange(ApiModel):
    """Consecutive layers of a pipeline."""

    first: Count = Field(description="First layer, counted from 0.")
    count: Count = Field(description="Number of layers.")


class Rank(ApiModel):
    """One rank of a group."""

    rank: Annotated[int, Field(ge=0, lt=MAX_RANKS)] = Field(description="Number of the rank, from 0.")
    node: Name = Field(description="Node that it is placed on.")
    pod: Name | None = Field(default=None, description="Name of its pod.")
    address: Address | None = Field(default=None, description="Address that other ranks reach it at.")
    layers: LayerRange | None = Field(default=None, description="Its layers, in a pipeline.")
    shard: Word | None = Field(default=None, description="Its shard in tensor parallelism, such as 1/2.")
    memory_bytes: Int64 | None = Field(default=None, description="Bytes of GPU memory that are reserved for it.")
    state: RankPhase = Field(default=RankPhase.PENDING, description="Where it is on its way.")
    loaded_bytes: Int64 | None = Field(
        default=None, description="Bytes of weights that it has loaded, while it loads and after."
    )
    total_bytes: Int64 | None = Field(default=None, description="Bytes of weights of its shard.")
    loaded_layers: Count | None = Field(default=None, description="Layers that it has loaded.")
    attempts: Count = Field(default=0, description="Bootstrap attempts in this epoch.")
    last_error: Message | None = Field(default=None, description="Its last error, in its own words.")


class Failure(ApiModel):
    """What ended a group, by its first cause."""

    class_: FaultClass = Field(description="What it asks for: Retry, Replan, Configure, Reboot or Bug.")
    reason: ReasonText = Field(description="What it was, as one word.")
    rank: Annotated[int, Field(ge=0, lt=MAX_RANKS)] | None = Field(default=None, description="Rank that failed first.")
    node: Name | None = Field(default=None, description="Node that it was on.")
    message: Message = Field(default="", description="The failure's own text, and what to do.")
    time: Time = Field(description="When.")


class Group(ApiModel):
    """One group: the ranks that serve one copy of the model together."""

    index: Annotated[int, Field(ge=0, lt=MAX_GROUPS)] = Field(description="Number of the group, from 0.")
    uid: UUID | None = Field(default=None, description="Identity of the group; kept over its epochs.")
    epoch: Count = Field(default=0, description="Number of its placement; every new placement is a new epoch.")
    state: GroupPhase = Field(default=GroupPhase.PENDING, description="Where it is on its way.")
    message: Message = Field(default="", description="What it waits for, for people.")
    transport: PlacedTransport | None = Field(default=None, description="What its ranks talk over; None for a single rank.")
    parallelism: PlacedSplit | None = Field(default=None, description="How the model is split; None for a single rank.")
    reason: Message = Field(default="", description="Why this transport, parallelism and these Macs.")
    coordinator: HostPort | None = Field(default=None, description="Address and port at which rank 0 leads.")
    endpoint: Url | None = Field(default=None, description="URL of this group's OpenAI-compatible API.")
    ranks: Annotated[tuple[Rank, ...], Field(max_length=MAX_RANKS)] = Field(
        default=(), description="Its ranks.", json_schema_extra={"x-list-keys": ["rank"]}
    )
    restarts: Count = Field(default=0, description="New placements after failures, against recovery.maxRestarts.")
    next_restart_time: Time | None = Field(default=None, description="When the next placement is made, if it waits.")
    last_failure: Failure | None = Field(default=None, description="What ended it last.")


class Unplaceable(ApiModel):
    """One way of placing a group that nearly worked, and what it lacks."""

    group: Annotated[int, Field(ge=0, lt=MAX_GROUPS)] = Field(default=0, description="Number of the group.")
    transport: PlacedTransport | None = Field(default=None, description="Transport that was tried.")
    parallelism: PlacedSplit | None = Field(default=None, description="Split that was tried.")
    nodes: Annotated[tuple[Name, ...], Field(max_length=MAX_RANKS)] = Field(default=(), description="Macs considered.")
    message: Message = Field(description="What it lacks, for people.")


class TerminatingPod(ApiModel):
    """A pod of an earlier epoch whose Mac has not answered yet; never force-deleted."""

    name: Name = Field(description="Name of the pod.")
    uid: UUID | None = Field(default=None, description="UID of the pod.")
    node: Name | None = Field(default=None, description="Node that has not answered.")
    since: Time | None = Field(default=None, description="Since when it is asked to end.")


class BenchmarkResult(ApiModel):
    """What was measured through the served path, and with what."""

    prefill_tokens_per_second: Quantity | None = Field(default=None, description="Prompt tokens per second.")
    decode_tokens_per_second: Quantity | None = Field(default=None, description="Generated tokens per second.")
    time_to_first_token_microseconds: Int64 | None = Field(
        default=None, description="Microseconds from the request to the first token."
    )
    peak_memory_bytes: Annotated[tuple[Int64, ...], Field(max_length=MAX_RANKS)] = Field(
        default=(), description="Peak GPU memory of each rank in bytes, in the order of ranks."
    )
    all_reduce_megabytes_per_second: Quantity | None = Field(
        default=None, description="Bandwidth of a large all-reduce in MB/s."
    )
    all_reduce_microseconds: Int64 | None = Field(default=None, description="Latency of a small all-reduce.")
    ran: Message | None = Field(default=None, description="What was run, in words.")
    prompt_tokens: Count | None = Field(default=None, description="Tokens of the prompt that was run.")
    generation_tokens: Count | None = Field(default=None, description="Tokens that were generated.")
    group: Count | None = Field(default=None, description="Group that was measured.")
    epoch: Count | None = Field(default=None, description="Its placement epoch at that time.")
    world_size: Count | None = Field(default=None, description="Its number of ranks.")
    transport: PlacedTransport | None = Field(default=None, description="What its ranks talked over.")
    parallelism: PlacedSplit | None = Field(default=None, description="How the model was split.")
    mlx_version: Word | None = Field(default=None, description="Version of mlx that ran.")
    mlx_lm_version: Word | None = Field(default=None, description="Version of mlx-lm that ran.")
    measured_at: Time | None = Field(default=None, description="When it was measured.")


class ModelDeploymentStatus(ApiModel):
    """What became of it; written by the operator alone."""

    observed_generation: Int64 | None = Field(default=None, description="The metadata.generation that this status is about.")
    replicas: Count = Field(default=0, description="Number of groups that exist.")
    ready_replicas: Count = Field(default=0, description="Number of groups that serve.")
    selector: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Label selector of the pods that serve, for the scale subresource."
    )
    endpoint: Url | None = Field(default=None, description="URL of the OpenAI-compatible API: that of the lowest Ready group.")
    model: Token | None = Field(default=None, description="Name of the model for people (a column).")
    ready: Word | None = Field(default=None, description="Ready groups of all, such as 1/1 (a column).")
    nodes: Message | None = Field(default=None, description="Nodes that serve, separated by commas (a column).")
    transport: Word | None = Field(default=None, description="Transport of its groups (a column).")
    tokens_per_second: Quantity | None = Field(
        default=None, description="Generated tokens per second of the last benchmark (a column)."
    )
    groups: Annotated[tuple[Group, ...], Field(max_length=MAX_GROUPS)] = Field(
        default=(), description="The groups, by index.", json_schema_extra={"x-list-keys": ["index"]}
    )
    unplaceable: Annotated[tuple[Unplaceable, ...], Field(max_length=64)] = Field(
        default=(), description="Near misses of the last placement that failed, and what each lacks."
    )
    terminating_pods: Annotated[tuple[TerminatingPod, ...], Field(max_length=256)] = Field(
        default=(), description="Pods of earlier epochs whose Macs have not answered yet."
    )
    benchmark: BenchmarkResult | None = Field(default=None, description="What was measured last.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="ModelResolved, Placed, Bootstrapped, Ready, Benchmarked, Degraded.",
        json_schema_extra={"x-list-keys": ["type"]},
    )


class ModelDeployment(ApiModel):
    """A model, served across Macs."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && "
                    "self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')",
                    "message": f"the name has at most {MAX_NAME_LENGTH} characters of [a-z0-9-], begins with a letter "
                    "and ends with a letter or digit (a Service is named after it)",
                }
            ]
        }
    )

    api_version: Literal["thunderfleet.io/v1alpha1"] = "thunderfleet.io/v1alpha1"
    kind: Literal["ModelDeployment"] = "ModelDeployment"
    metadata: ObjectMeta
    spec: ModelDeploymentSpec = Field(description="What to serve, and how.")
    status: ModelDeploymentStatus = Field(default=ModelDeploymentStatus(), description="What became of it.")


def duration_seconds(text: str) -> int:
    """Seconds of a duration such as ``24h`` or ``1h30m``. Raises ``ValueError`` for anything else."""
    match = re.fullmatch(DURATION_PATTERN, text)
    if not text or match is None:
        raise ValueError(f"a duration is hours, minutes and seconds such as 24h or 1h30m, not {text!r}")
    hours, minutes, seconds = (int(part[:-1]) if part else 0 for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
