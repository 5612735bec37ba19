"""ModelDeployment: a model served across Macs. Users write ``spec``, the operator writes ``status``.

Every field except ``spec.model`` has a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from thunderfleet_crds import uris
from thunderfleet_crds.exchange.routing import (
    DEFAULT_CONCURRENT_REQUESTS,
    DEFAULT_CONTEXT_TOKENS,
    MAX_ALIASES,
    MAX_KEYS,
    Alias,
    ApiKey,
    cache_capacity,
)
from thunderfleet_crds.meta.apimodel import ApiModel, ObjectMeta
from thunderfleet_crds.meta.conditions import Condition
from thunderfleet_crds.meta.fields import (
    UUID,
    Address,
    Count,
    FolderUri,
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
    SecretName,
    Sha256,
    Time,
    Token,
    Url,
    Word,
)
from thunderfleet_crds.meta.podmetadata import PodMetadata
from thunderfleet_crds.names import MAX_GROUPS, MAX_NAME_LENGTH, MAX_RANKS
from thunderfleet_crds.vocabulary import (
    ConditionStatus,
    ConditionType,
    Copies,
    FailbackPolicy,
    FastSynch,
    FaultClass,
    GroupPhase,
    PlacedSplit,
    PlacedTransport,
    PlacementPolicy,
    RankPhase,
    RequestedSplit,
    RequestedTransport,
    RuntimeVariable,
    Split,
    TaintEffect,
    TolerationOperator,
    Transport,
    Verify,
    WiredLimit,
)
from thunderfleet_crds.weights.copies import MacCopy
from thunderfleet_crds.weights.quantization import Quantize, kept_name

CONDITION_TYPES: Final = (
    ConditionType.MODEL_RESOLVED,
    ConditionType.PLACED,
    ConditionType.BOOTSTRAPPED,
    ConditionType.READY,
    ConditionType.BENCHMARKED,
    ConditionType.DEGRADED,
    ConditionType.VERIFIED,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
)

DURATION_PATTERN: Final = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
LABEL_KEY_MAX_LENGTH: Final = 317
MAX_AVOIDED_LINKS: Final = 16
MAX_PROVEN_LENGTHS: Final = 8
MAX_WEIGHTS_COPIES: Final = 64
MAX_RECORDED_ANSWERS: Final = 4
MAX_RECORDED_TOKENS: Final = 64
MAX_ENDPOINTS: Final = 256


ONE_SOURCE: Final = (
    "set exactly one of model.repository (on the Hugging Face Hub), model.path (on the nodes) and model.uri (on a server)"
)


class ModelSource(ApiModel):
    """The model to serve; exactly one of repository, path and uri is set."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "[has(self.repository), has(self.path), has(self.uri)].filter(is_set, is_set).size() == 1",
                    "message": ONE_SOURCE,
                },
                {
                    "rule": "has(self.uri) == has(self.sha256)",
                    "message": "model.uri and model.sha256 belong together: sha256 is the hash of the file "
                    "SHA256SUMS at the URI",
                },
                {
                    "rule": "!has(self.uri) || (!has(self.tokenSecret) && (!has(self.revision) || self.revision == 'main'))",
                    "message": "model.revision and model.tokenSecret are for model.repository: model.sha256 is the version of "
                    "a URI, and no token is sent to it",
                },
                {
                    "rule": "!has(self.quantize) || has(self.repository)",
                    "message": "model.quantize needs model.repository: models of model.path and model.uri are used as they are",
                },
            ]
        }
    )

    repository: Name | None = Field(
        default=None,
        description="Repository on the Hugging Face Hub, such as mlx-community/Qwen3-30B-A3B-4bit. The agents look for it in "
        "Hugging Face caches and below their model folders, in a folder of this name: owner/name, or name alone. "
        "If no Mac has it, it is fetched from the hub, and a ModelCache of the same name as the ModelDeployment "
        "shows the progress.",
        json_schema_extra={
            "x-rule": "self.matches('^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$')",
            "x-message": "repository must have the form owner/name, or name alone, with letters, digits, '.', '_' and '-'",
        },
    )
    path: Path | None = Field(
        default=None,
        description="Absolute path of the model's folder on the nodes, below one of the agents' model folders (the "
        "chart's value agent.modelFolders). Agents do not look elsewhere.",
        json_schema_extra={
            "x-rule": "self.startsWith('/') && !self.contains('/../') && !self.endsWith('/..')",
            "x-message": "path must be the absolute path of a folder on the nodes, without '..'",
        },
    )
    uri: FolderUri | None = Field(
        default=None,
        description="Folder on a server with the model's files, such as https://models.example.com/qwen3-8b-4bit/, and with "
        "a file SHA256SUMS that lists them as `sha256sum * > SHA256SUMS` writes it. The chart's value uris.hosts "
        "lists the hosts from which Macs may fetch models. A ModelCache of the same name as the ModelDeployment "
        "shows the progress.",
    )
    sha256: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the file SHA256SUMS at the URI. All files are verified against it, so the model cannot change.",
    )
    revision: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        default="main",
        description="For a copy in a Hugging Face cache of a Mac: full hash of the commit that it must have (the name of its "
        "folder below snapshots), or main to accept any commit. Copies elsewhere are always accepted, because "
        "their commit is not known. For a download from the hub: branch, tag or full hash of a commit. It is "
        "resolved to a commit once, and again when the spec changes.",
    )
    token_secret: SecretName | None = Field(
        default=None,
        description="Name of a Secret in the same namespace, with a token of the hub under the key token, for gated and "
        "private repositories. Only the pods that read from the hub mount it.",
    )
    quantize: Quantize | None = Field(
        default=None,
        description="If set, the weights of the repository are quantized once, with mlx-lm in a pod on one Mac; other Macs "
        "copy the "
        "result. The repository must have weights in safetensors that are not quantized.",
    )
    copies: Copies = Field(
        default=Copies.WHOLE,
        description="What each Mac of a group fetches: Whole (all files, so nothing is fetched when a new placement moves "
        "layers) or Shard (in a pipeline, only the files with the layers of its rank). Shard also fetches all "
        "files for tensor parallelism, for a group of one Mac, and if the files cannot be divided. A change "
        "applies to new placements.",
    )

    @property
    def kept_as(self) -> str | None:
        """The name of the repository under which Macs keep the files; None for a path."""
        if self.uri is not None:
            return uris.kept_name(self.uri)
        return kept_name(self.repository, self.quantize) if self.repository is not None else None


class Toleration(ApiModel):
    """Allows Nodes with a matching taint."""

    key: Annotated[str, Field(max_length=LABEL_KEY_MAX_LENGTH)] | None = Field(
        default=None, description="Key of the taint. If unset and operator is Exists, all taints match."
    )
    operator: TolerationOperator = Field(
        default=TolerationOperator.EQUAL, description="Exists to match any value, or Equal (the default) to match value."
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint, if operator is Equal.")
    effect: TaintEffect | None = Field(default=None, description="Effect of the taint. If unset, all effects match.")


class Nodes(ApiModel):
    """The Nodes that a group may use."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "!has(self.max) || self.max >= self.min",
                    "message": "nodes.max must be at least nodes.min; leave it unset for no maximum",
                }
            ]
        }
    )

    min: Annotated[int, Field(ge=1, le=MAX_RANKS)] = Field(default=1, description="Minimum number of Nodes of a group.")
    max: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = Field(
        default=None, description="Maximum number of Nodes of a group. If unset, there is no maximum."
    )
    selector: Annotated[Mapping[str, LabelValue], Field(max_length=32)] = Field(
        default={}, description="Labels that a Node must have."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        default=(), description="Tolerations for taints of Nodes. The taint thunderfleet.io/macos is always tolerated."
    )


class Memory(ApiModel):
    """Memory reserved in addition to the weights. The gateway admits requests within these limits."""

    context_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        default=DEFAULT_CONTEXT_TOKENS, description="Maximum length of one request, prompt and completion, in tokens."
    )
    concurrent_requests: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=DEFAULT_CONCURRENT_REQUESTS,
        description="Maximum number of requests that run at the same time; further requests wait.",
    )
    cached_tokens: Count | None = Field(
        default=None,
        description="Capacity of the prompt cache in tokens. If unset, contextTokens, but at least 65536. If it is less than "
        "contextTokens, only the beginning of a longer conversation is kept, or nothing if the model's cache "
        "cannot be shortened.",
    )
    headroom_percent: Percent = Field(
        default=10, description="Safety margin in percent of everything that a rank reserves, including its weights."
    )

    @property
    def cache_capacity(self) -> int:
        """Capacity of the prompt cache in tokens: the longest conversation has room, unless the spec sets another value."""
        return cache_capacity(self.cached_tokens, self.context_tokens)


class Server(ApiModel):
    """The OpenAI-compatible HTTP endpoint."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "size(self.?apiKeys.orValue([])) == 0 || has(self.apiKeySecret)",
                    "message": "server.apiKeys sets limits of keys in a Secret: set server.apiKeySecret too",
                }
            ]
        }
    )

    port: Port | None = Field(
        default=None, description="Port of the endpoint on the Node of rank 0. If unset, the operator picks a free one."
    )
    api_key_secret: SecretName | None = Field(
        default=None,
        description="Name of a Secret in the namespace; each value in it is an accepted API key. Routers follow a change "
        "within seconds. Groups read the values when their pods start: after a change, delete the pods. If unset, no key is "
        "required.",
    )
    aliases: Annotated[tuple[Alias, ...], Field(max_length=MAX_ALIASES)] = Field(
        default=(),
        description="Other names under which routers serve the model, such as gpt-4o. A ModelDeployment or repository of the "
        "same name takes precedence. If the chart's value router.aliases has the same alias, a request with an API key gets "
        "the one here if the key is of this namespace, and a request without a key gets that of router.aliases. A key of "
        "other namespaces cannot use the aliases. A change restarts no group.",
        json_schema_extra={
            "x-rule": "self.all(a, self.exists_one(b, b == a))",
            "x-message": "server.aliases must not contain duplicates",
        },
    )
    api_keys: Annotated[tuple[ApiKey, ...], Field(max_length=MAX_KEYS)] = Field(
        default=(),
        description="Limits of API keys in the Secret that apiKeySecret names, for requests to routers. Keys without an entry "
        "have no limits. A change restarts no group.",
        json_schema_extra={"x-list-keys": ["name"]},
    )


class Bootstrap(ApiModel):
    """How the ranks form a group."""

    attempts: Annotated[int, Field(ge=1, le=32)] = Field(
        default=8,
        description="Number of times that the ranks of a placement try to form a group; then the operator makes a new "
        "placement.",
    )
    attempt_timeout_seconds: Annotated[int, Field(ge=5, le=3600)] = Field(
        default=60, description="Time limit of one attempt in seconds."
    )
    ring_without_relay: bool = Field(
        default=False,
        description="Allow the ring transport to use a LAN without encryption. Anyone on that network can then read and change "
        "what the ranks exchange. If false, traffic over a LAN is relayed over mutual TLS.",
    )


class Recovery(ApiModel):
    """How the operator recovers a failed group."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "self.backoffLimitSeconds >= self.backoffSeconds",
                    "message": "recovery.backoffLimitSeconds must be at least recovery.backoffSeconds",
                }
            ]
        }
    )

    max_restarts: Count = Field(
        default=10,
        description="Maximum number of restarts of a group; after them its state is GaveUp. To start it again, raise this "
        "number; a change of spec.model, nodes, parallelism, transport, memory or runtime starts it again too. The count is "
        "reset when the group has been Ready for 10 minutes.",
    )
    backoff_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=10, description="Delay before the first restart in seconds; it doubles with every restart."
    )
    backoff_limit_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=300, description="Maximum delay before a restart in seconds."
    )
    failback: FailbackPolicy = Field(
        default=FailbackPolicy.WHEN_IDLE,
        description="Whether a group goes back to a better placement after it was moved because a cable failed, or because a "
        "Mac got another address or name. WhenIdle: it goes back when no request is running and the cable has "
        "worked for 30 s; each further interruption doubles this time, up to 30 min. Never: it stays.",
    )


class BenchmarkSpec(ApiModel):
    """The benchmark that runs on the serving group while it is idle."""

    prompt_tokens: Annotated[int, Field(ge=1, le=1048576)] = Field(default=512, description="Length of the prompt in tokens.")
    generation_tokens: Annotated[int, Field(ge=1, le=1048576)] = Field(default=128, description="Number of tokens to generate.")
    every: Annotated[str, Field(max_length=24, pattern=DURATION_PATTERN)] = Field(
        default="24h",
        description="Interval between benchmarks: a duration such as 24h or 1h30m, at least 1m.",
        json_schema_extra={
            "x-rule": f"self.matches('{DURATION_PATTERN}') && self != '' && duration(self) >= duration('1m')",
            "x-message": "every must be a duration in hours, minutes and seconds such as 24h or 1h30m, at least 1m",
        },
    )


class PlacementSpec(ApiModel):
    """How a placement is chosen among the possible ones."""

    policy: PlacementPolicy = Field(
        default=PlacementPolicy.FEWEST,
        description="How predicted speed decides. Fewest starts with the fewest Nodes; it uses more Nodes only if they are "
        "predicted to be at least 2 times as fast, and Tensor instead of Pipeline only if it is predicted to be at least 1.5 "
        "times as fast. Fastest uses more Nodes, or Tensor, if they are predicted to be at least 1.1 times as fast. If the "
        "speed cannot be predicted, the best transport decides (JACCL, then JACCLRing, then Ring), then the smallest number of "
        "Nodes. A running group is not moved to a better placement, except as recovery.failback specifies.",
    )


class EnvVar(ApiModel):
    """An environment variable of MLX."""

    name: RuntimeVariable = Field(description="Name of the variable.")
    value: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._+-]+$")] = Field(
        description="Value of the variable."
    )


class RuntimeSpec(ApiModel):
    """Settings of MLX, the same on all ranks of a group."""

    fast_synch: FastSynch = Field(
        default=FastSynch.DISABLED,
        description="Enabled sets MLX_METAL_FAST_SYNCH for groups with parallelism Tensor and transport JACCL: each "
        "synchronization of CPU and GPU, of which every layer needs several, then takes a few microseconds "
        "instead of 150 to 180. The GPU can hang in such a synchronization until its Mac is rebooted. Groups "
        "with another parallelism or transport run without it.",
    )
    wired_limit: WiredLimit = Field(
        default=WiredLimit.AUTO,
        description="Auto wires the memory that is reserved for a rank, so that macOS does not page it out. Unlimited sets "
        "no wired limit, so macOS decides what it pages out: use it if a Mac restarts under load with kernel "
        "panics that name IOGPU. Models that nearly fill the memory then become much slower.",
    )
    env: Annotated[tuple[EnvVar, ...], Field(max_length=len(RuntimeVariable))] = Field(
        default=(), description="Environment variables of MLX.", json_schema_extra={"x-list-keys": ["name"]}
    )


class Autoscaling(ApiModel):
    """How the number of groups follows the requests."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "self.maxReplicas >= self.minReplicas",
                    "message": "autoscaling.maxReplicas must be at least autoscaling.minReplicas",
                }
            ]
        }
    )

    min_replicas: Annotated[int, Field(ge=0, le=MAX_GROUPS)] = Field(
        default=1,
        description="Minimum number of groups. With 0, the last group is stopped after scaleToZeroAfterSeconds without a "
        "request, and a request to a router starts it again.",
    )
    max_replicas: Annotated[int, Field(ge=1, le=MAX_GROUPS)] = Field(default=1, description="Maximum number of groups.")
    target_in_flight_requests: Annotated[int, Field(ge=1, le=100000)] | None = Field(
        default=None,
        description="Target number of requests for one group, running and waiting. If there are more for 15 seconds, groups "
        "are added. If fewer groups are enough for 2 minutes, groups are removed when their requests have ended. "
        "If unset, the value of memory.concurrentRequests.",
    )
    scale_to_zero_after_seconds: Annotated[int, Field(ge=1, le=2592000)] = Field(
        default=600, description="With minReplicas 0: time without a request after which the last group is stopped, in seconds."
    )


class ModelDeploymentSpec(ApiModel):
    """The desired state. A change of the ranks' settings is rolled out to one group after the other."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "!has(self.autoscaling) || !has(oldSelf.autoscaling) || self.replicas == oldSelf.replicas",
                    "message": "replicas cannot be changed while autoscaling is set: change autoscaling.minReplicas or "
                    "autoscaling.maxReplicas, or remove autoscaling",
                }
            ]
        }
    )

    model: ModelSource = Field(description="The model to serve. Exactly one of repository, path and uri is required.")
    replicas: Annotated[int, Field(ge=0, le=MAX_GROUPS)] = Field(
        default=1,
        description="Number of groups that serve the model independently of each other. With autoscaling, the number to start "
        "with, which cannot be changed.",
    )
    autoscaling: Autoscaling | None = Field(
        default=None,
        description="How the number of groups is adapted to the number of requests. If unset, replicas sets the number of "
        "groups. "
        "A change restarts no group.",
    )
    suspend: bool = Field(
        default=False,
        description="If true, all groups are stopped when their requests have ended, and requests do not start them.",
    )
    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None,
        description="Name of the PriorityClass of the pods. A change applies to pods that are created later, and restarts no "
        "group. Models with autoscaling.minReplicas 0 that name the same class can be stopped to make room for "
        "each other, also across namespaces.",
        json_schema_extra={
            "x-rule": "!self.startsWith('system-')",
            "x-message": "priorityClassName must not begin with system-: these classes are for cluster components, and their "
            "pods could preempt groups of other namespaces",
        },
    )
    pod_metadata: PodMetadata = Field(
        default=PodMetadata(),
        description="Labels and annotations of the pods, in addition to the operator's. A change applies to pods that are "
        "created later, and restarts no group.",
    )
    nodes: Nodes = Field(default=Nodes(), description="The Nodes that a group may use.")
    placement: PlacementSpec = Field(default=PlacementSpec(), description="How a placement is chosen among the possible ones.")
    parallelism: RequestedSplit = Field(
        default=Split.AUTO,
        description="How the model is split over the ranks of a group: Tensor (each layer is divided), Pipeline (each rank "
        "holds consecutive layers), or Auto (placement.policy decides).",
    )
    transport: RequestedTransport = Field(
        default=Transport.AUTO,
        description="Communication backend of the ranks: JACCL (RDMA, all pairs connected), JACCLRing (RDMA, neighbors "
        "connected), Ring (TCP), or Auto (placement.policy decides).",
    )
    memory: Memory = Field(default=Memory(), description="Memory reserved in addition to the weights.")
    server: Server = Field(default=Server(), description="The OpenAI-compatible HTTP endpoint.")
    runtime: RuntimeSpec = Field(default=RuntimeSpec(), description="Settings of MLX, the same on all ranks of a group.")
    bootstrap: Bootstrap = Field(default=Bootstrap(), description="How the ranks form a group.")
    verify: Verify = Field(
        default=Verify.FULL,
        description="What a group checks; the condition Verified has the result. None: nothing. Quick: before the ranks load "
        "the model, they exchange known values over each connection and compare every bit. Full: as Quick, and "
        "also the model. The ranks check products and layers that they compute (reasons KernelWrong and "
        "SplitWrong), compare their logits (Diverged), and compare the answer to a test prompt with earlier "
        "answers (OutputWrong). Full also tests long contexts with passages of 300, 2,600 and 9,000 tokens: the "
        "prompt is a passage, followed by a part of it, and the right answer is the text that follows that part "
        "in the passage. Some models cannot do that, so a wrong answer is a failure (OutputWrong) only for a "
        "length that the same model has answered correctly before. Each time the group forms, these lengths are "
        "tested again. Those up to 2,600, and any whose last answer was wrong, are tested before the group "
        "serves; all others while it is idle.",
    )
    recovery: Recovery = Field(default=Recovery(), description="How the operator recovers a failed group.")
    benchmark: BenchmarkSpec = Field(
        default=BenchmarkSpec(), description="The benchmark that runs on the serving group while it is idle."
    )


class LayerRange(ApiModel):
    """A range of consecutive layers."""

    first: Count = Field(description="Index of the first layer, starting at 0.")
    count: Count = Field(description="Number of layers.")


class Rank(ApiModel):
    """One rank of a group."""

    rank: Annotated[int, Field(ge=0, lt=MAX_RANKS)] = Field(
        description="Number of the rank, starting at 0. Rank 0 leads the group and serves the endpoint."
    )
    node: Name = Field(description="Name of the Node that the rank is placed on.")
    pod: Name | None = Field(default=None, description="Name of the rank's pod.")
    address: Address | None = Field(default=None, description="IP address at which other ranks reach this rank.")
    layers: LayerRange | None = Field(default=None, description="Layers of the rank, if parallelism is Pipeline.")
    shard: Word | None = Field(default=None, description="Shard of the rank, if parallelism is Tensor, such as 1/2.")
    memory_bytes: Int64 | None = Field(default=None, description="GPU memory reserved for the rank in bytes.")
    state: RankPhase = Field(
        default=RankPhase.PENDING,
        description="Lifecycle phase of the rank: Pending (its pod is not scheduled), Starting (its pod starts), Absent (not "
        "connected to rank 0), Joined (connected), Checked (ready for an attempt), Forming, Loading, Serving or Failed.",
    )
    loaded_bytes: Int64 | None = Field(default=None, description="Weights loaded so far in bytes.")
    total_bytes: Int64 | None = Field(default=None, description="Weights of the rank in bytes.")
    loaded_layers: Count | None = Field(default=None, description="Number of layers loaded so far.")
    attempts: Count = Field(default=0, description="Number of attempts to form the group in this epoch.")
    last_error: Message | None = Field(default=None, description="Most recent error that the rank reported.")


class Failure(ApiModel):
    """A failure of a group, described by its first cause."""

    class_: FaultClass = Field(
        description="Response to the failure: Retry (on the same Nodes), Replan (a new placement), Configure (a user must "
        "change something), Reboot (of the Mac) or Bug (a defect to report)."
    )
    reason: ReasonText = Field(description="Machine-readable reason in CamelCase.")
    rank: Annotated[int, Field(ge=0, lt=MAX_RANKS)] | None = Field(
        default=None, description="Number of the rank that failed first."
    )
    node: Name | None = Field(default=None, description="Name of the Node that the failure occurred on.")
    link: Name | None = Field(
        default=None,
        description="Name of the ThunderboltLink, if a cable that the group uses has a known fault, or has corrupted data.",
    )
    message: Message = Field(default="", description="Human-readable description of the failure and of what to do.")
    time: Time = Field(description="Time of the failure.")


class VerifiedStatus(ApiModel):
    """Whether a group has passed the checks of spec.verify."""

    status: ConditionStatus = Field(description="True, False, or Unknown while the checks have not ended.")
    reason: ReasonText = Field(description="Machine-readable reason in CamelCase.")
    message: Message = Field(default="", description="Human-readable description of what was checked.")


class ProvenLengths(ApiModel):
    """Lengths of the passages that the model continued in the check, in any placement of the group."""

    digest: Annotated[str, Field(max_length=128)] = Field(
        description="SHA-256 of the tokenizer files, and of the names, types and shapes of the tensors."
    )
    lengths: Annotated[tuple[Count, ...], Field(max_length=MAX_PROVEN_LENGTHS)] = Field(
        default=(), description="Lengths of passages in tokens."
    )


class WeightsCopy(ApiModel):
    """A Mac's copy of the model, whose weights were read and hashed once."""

    node: Name = Field(description="Node with the copy.")
    signature: Annotated[str, Field(max_length=128)] = Field(
        description="SHA-256 of the names, sizes, times and inode numbers of the files. If it is unchanged, the weights are "
        "unchanged."
    )
    digest: Annotated[str, Field(max_length=128)] = Field(description="SHA-256 of the values of the weights.")


class RecordedAnswer(ApiModel):
    """An answer to the test prompt, with which later answers under the same conditions are compared."""

    key: Annotated[str, Field(max_length=128)] = Field(
        description="SHA-256 of what an answer depends on: weights, tokenizer, split, chips, environment variables, and "
        "versions of macOS, mlx and mlx-lm."
    )
    tokens: Annotated[tuple[Count, ...], Field(max_length=MAX_RECORDED_TOKENS)] = Field(
        default=(), description="Token ids of the answer."
    )
    costs: Annotated[tuple[Count, ...], Field(max_length=MAX_RECORDED_TOKENS)] = Field(
        default=(), description="Negative log probabilities of the tokens, in thousandths."
    )
    margins: Annotated[tuple[Count, ...], Field(max_length=MAX_RECORDED_TOKENS)] = Field(
        default=(),
        description="How much more likely each token was than the second most likely one: difference of the log "
        "probabilities, in thousandths.",
    )


class LostPlace(ApiModel):
    """The placement that a group lost through a failure. See spec.recovery.failback."""

    transport: PlacedTransport | None = Field(default=None, description="Transport of the placement.")
    nodes: Annotated[tuple[Name, ...], Field(max_length=MAX_RANKS)] = Field(
        default=(), description="Names of the Nodes of the placement, by rank."
    )
    links: Annotated[tuple[Name, ...], Field(max_length=8)] = Field(
        default=(), description="Names of the ThunderboltLinks that failed, the most recent last."
    )
    returning: bool = Field(
        default=False, description="Whether the group is draining in order to go back to a better placement."
    )


class AvoidedLink(ApiModel):
    """A cable that corrupted data of a group."""

    name: Name = Field(description="Name of the ThunderboltLink.")
    epoch: Count = Field(description="Number of the placement (epoch) whose check failed.")
    connection: Annotated[str, Field(max_length=128)] = Field(
        default="", description="Identifies the connection; it changes when the cable is unplugged and plugged in again."
    )
    since: Time = Field(description="Time at which the check failed.")


class Predicted(ApiModel):
    """Predicted speed of a group for one request of the benchmark's lengths.

    It is computed from the model's weights, the transport, and the speeds of the Macs (measured, or assumed for the chip).
    """

    decode_tokens_per_second: Quantity | None = Field(default=None, description="Generation rate in tokens per second.")
    prefill_tokens_per_second: Quantity | None = Field(default=None, description="Prompt processing rate in tokens per second.")
    correction_percent: Annotated[int, Field(ge=50, le=200)] | None = Field(
        default=None,
        description="The predicted generation rate as a percentage of the uncorrected prediction: at 90, benchmarks of this "
        "fleet have lowered it by 10 %. Unset without a correction.",
    )
    decode_error_percent: Count | None = Field(
        default=None,
        description="Absolute difference between the uncorrected prediction of the generation rate and the rate that the "
        "group's benchmark measured, in percent of the measured rate.",
    )


class Group(ApiModel):
    """A group: the ranks that serve one copy of the model together."""

    index: Annotated[int, Field(ge=0, lt=MAX_GROUPS)] = Field(description="Number of the group, starting at 0.")
    uid: UUID | None = Field(default=None, description="UID of the group; it does not change with the epoch.")
    epoch: Count = Field(default=0, description="Number of the group's placement, which increases with every new placement.")
    plan_digest: Word | None = Field(
        default=None,
        description="SHA-256 of the group's plan, the ConfigMap from which the group's pods read what to run and how to "
        "connect. If "
        "the key that signed the plan is lost, the operator recognizes the plan by this digest.",
    )
    state: GroupPhase = Field(
        default=GroupPhase.PENDING,
        description="Lifecycle phase of the group: Pending (no placement or no pods yet), Starting (rank 0 has not "
        "reported yet), "
        "Waiting (ranks have not joined rank 0), Preparing (checks before an attempt, or the pause between two attempts), "
        "Forming (the ranks connect to each other), Loading (weights, then a test prompt), Ready (serves requests), Draining "
        "(finishes its requests), GaveUp (stopped after failures) or BackingOff (after a failure, waits for its next restart "
        "or for a placement).",
    )
    message: Message = Field(default="", description="Human-readable description of what the group waits for.")
    transport: PlacedTransport | None = Field(
        default=None, description="Communication backend of the ranks; None for a single rank."
    )
    parallelism: PlacedSplit | None = Field(
        default=None, description="How the model is split over the ranks; None for a single rank."
    )
    reason: Message = Field(default="", description="Human-readable reason for the choice of Nodes, transport and parallelism.")
    coordinator: HostPort | None = Field(default=None, description="Address and port of rank 0's control endpoint.")
    endpoint: Url | None = Field(default=None, description="URL of the group's OpenAI-compatible API.")
    runner_version: Word | None = Field(
        default=None,
        description="Version of Thunderfleet that rank 0 has reported in this epoch. An upgrade restarts no group, "
        "so groups may run earlier versions.",
    )
    intake: Message | None = Field(
        default=None,
        description="Description of a problem of the intake, rank 0's process that tokenizes requests. While it does not "
        "work, requests "
        "wait or fail. Unset if there is no problem.",
    )
    ranks: Annotated[tuple[Rank, ...], Field(max_length=MAX_RANKS)] = Field(
        default=(), description="Ranks of the group.", json_schema_extra={"x-list-keys": ["rank"]}
    )
    environment: Annotated[tuple[Word, ...], Field(max_length=16)] = Field(
        default=(), description="Environment variables that spec.runtime sets for the ranks, as NAME=value."
    )
    verified: VerifiedStatus | None = Field(
        default=None, description="Whether the group has passed the checks of spec.verify. Unset before the first report."
    )
    proven_lengths: ProvenLengths | None = Field(
        default=None,
        description="Lengths of the passages that the group has continued correctly with the current model. In later checks, "
        "a wrong answer for one of these lengths is a failure.",
    )
    weights: Annotated[tuple[WeightsCopy, ...], Field(max_length=MAX_WEIGHTS_COPIES)] = Field(
        default=(),
        description="Copies of the current model on Macs of the group whose weights have been hashed.",
        json_schema_extra={"x-list-keys": ["node"]},
    )
    recorded_answers: Annotated[tuple[RecordedAnswer, ...], Field(max_length=MAX_RECORDED_ANSWERS)] = Field(
        default=(),
        description="Answers to the test prompt, one for each combination of weights, split, chips and versions. A different "
        "answer, where one token was clearly more likely than others, is a failure.",
        json_schema_extra={"x-list-keys": ["key"]},
    )
    predicted: Predicted | None = Field(
        default=None, description="Predicted speed for one request; status.benchmark has the measured speed."
    )
    restarts: Count = Field(default=0, description="Number of restarts after failures that count against recovery.maxRestarts.")
    next_restart_time: Time | None = Field(default=None, description="Time of the next restart, while the group backs off.")
    last_failure: Failure | None = Field(default=None, description="Most recent failure of the group.")
    lost_place: LostPlace | None = Field(
        default=None,
        description="Placement that the group left because a cable failed, or because a Mac got another address or name. "
        "Unset when the group has an equally good placement again.",
    )
    avoided_links: Annotated[tuple[AvoidedLink, ...], Field(max_length=MAX_AVOIDED_LINKS)] = Field(
        default=(),
        description="Cables that corrupted data in the check of a placement. No group of the ModelDeployment is placed on "
        "them for 24 hours, or until they are unplugged and plugged in again. If there is no other placement for "
        "5 minutes, they are used again.",
        json_schema_extra={"x-list-keys": ["name"]},
    )


class Unplaceable(ApiModel):
    """A placement that was considered and rejected, or Nodes that cannot be used."""

    group: Annotated[int, Field(ge=0, lt=MAX_GROUPS)] = Field(default=0, description="Number of the group.")
    transport: PlacedTransport | None = Field(default=None, description="Transport of the placement.")
    parallelism: PlacedSplit | None = Field(default=None, description="Parallelism of the placement.")
    nodes: Annotated[tuple[Name, ...], Field(max_length=MAX_RANKS)] = Field(
        default=(), description="Names of the Nodes of the placement."
    )
    message: Message = Field(description="Human-readable description of what is missing.")


class TerminatingPod(ApiModel):
    """A pod that terminates: of an earlier epoch, or of a group that no longer exists. It is never force-deleted."""

    name: Name = Field(description="Name of the pod.")
    uid: UUID | None = Field(default=None, description="UID of the pod.")
    node: Name | None = Field(default=None, description="Name of the pod's Node.")
    since: Time | None = Field(default=None, description="Time at which the pod was deleted.")


class BenchmarkResult(ApiModel):
    """Result of a benchmark of a serving group."""

    prefill_tokens_per_second: Quantity | None = Field(default=None, description="Prompt processing rate in tokens per second.")
    decode_tokens_per_second: Quantity | None = Field(default=None, description="Generation rate in tokens per second.")
    time_to_first_token_microseconds: Int64 | None = Field(
        default=None, description="Time from the request to the first token in microseconds."
    )
    peak_memory_bytes: Annotated[tuple[Int64, ...], Field(max_length=MAX_RANKS)] = Field(
        default=(), description="Peak GPU memory of each rank in bytes, by rank."
    )
    all_reduce_megabytes_per_second: Quantity | None = Field(
        default=None, description="Bandwidth of a large all-reduce in MB/s."
    )
    all_reduce_microseconds: Int64 | None = Field(default=None, description="Latency of a small all-reduce in microseconds.")
    ran: Message | None = Field(default=None, description="Human-readable description of the benchmark.")
    prompt_tokens: Count | None = Field(default=None, description="Length of the prompt in tokens.")
    generation_tokens: Count | None = Field(default=None, description="Number of generated tokens.")
    group: Count | None = Field(default=None, description="Number of the group that was measured.")
    epoch: Count | None = Field(default=None, description="Number of the group's placement (epoch) that was measured.")
    world_size: Count | None = Field(default=None, description="Number of ranks of the group.")
    transport: PlacedTransport | None = Field(default=None, description="Transport of the group.")
    parallelism: PlacedSplit | None = Field(default=None, description="Parallelism of the group.")
    mlx_version: Word | None = Field(default=None, description="Version of mlx.")
    mlx_lm_version: Word | None = Field(default=None, description="Version of mlx-lm.")
    measured_at: Time | None = Field(default=None, description="Time of the measurement.")


class RouterEndpoint(ApiModel):
    """A router, at which clients reach all models."""

    url: Url = Field(description="URL of the OpenAI-compatible API.")
    node: Name = Field(description="Name of the Node that the router runs on.")


class AutoscalingStatus(ApiModel):
    """The decision of autoscaling."""

    replicas: Annotated[int, Field(ge=0, le=MAX_GROUPS)] = Field(description="Number of groups.")
    draining_to: Annotated[int, Field(ge=0, le=MAX_GROUPS)] | None = Field(
        default=None,
        description="Number of groups that remain. Routers send no more requests to the others, which are stopped when their "
        "requests have ended. Unset if no group is about to be stopped.",
    )
    last_scale_time: Time | None = Field(default=None, description="Time at which the number of groups last changed.")
    last_request_time: Time | None = Field(
        default=None, description="Time of the last known request before the number of groups was last decreased."
    )
    message: Message = Field(default="", description="Human-readable reason for the number of groups.")


class ModelDeploymentStatus(ApiModel):
    """The observed state. Only the operator writes it."""

    observed_generation: Int64 | None = Field(
        default=None, description="The metadata.generation that the operator has observed."
    )
    replicas: Count = Field(default=0, description="Number of groups that have a placement.")
    ready_replicas: Count = Field(default=0, description="Number of groups that are Ready.")
    highest_epoch: Count | None = Field(
        default=None,
        description="Highest epoch (number of a placement) that any group has had. It never decreases, so that the plan of an "
        "earlier placement never becomes current again.",
    )
    selector: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Label selector of the serving pods, for the scale subresource."
    )
    endpoint: Url | None = Field(
        default=None,
        description="URL of the OpenAI-compatible API: the chart's value router.externalURL if it is set, otherwise that of "
        "a router; without routers, that of the first Ready group. Unset while no group is Ready and no request "
        "can start one.",
    )
    endpoints: Annotated[tuple[RouterEndpoint, ...], Field(max_length=MAX_ENDPOINTS)] = Field(
        default=(),
        description="Routers that are ready, those on Nodes of Ready groups first.",
        json_schema_extra={"x-list-keys": ["url"]},
    )
    autoscaling: AutoscalingStatus | None = Field(
        default=None, description="Decisions of autoscaling; unset if spec.autoscaling is unset."
    )
    model: Token | None = Field(default=None, description="Name of the model, for display.")
    commit: Token | None = Field(
        default=None, description="Commit of the repository that is fetched; unset if the Macs have the model already."
    )
    weights: Message | None = Field(default=None, description="Progress of the copies of the model, for display.")
    copies: Annotated[tuple[MacCopy, ...], Field(max_length=256)] = Field(
        default=(),
        description="The model's files on each Mac that fetches them for this ModelDeployment.",
        json_schema_extra={"x-list-keys": ["node"]},
    )
    ready: Word | None = Field(default=None, description="Ready and desired groups, such as 1/1, for display.")
    nodes: Message | None = Field(
        default=None, description="Names of the Nodes of all groups, separated by commas, for display."
    )
    transport: Word | None = Field(default=None, description="Transports of the groups, separated by commas, for display.")
    tokens_per_second: Quantity | None = Field(
        default=None, description="Generation rate of the most recent benchmark in tokens per second, for display."
    )
    groups: Annotated[tuple[Group, ...], Field(max_length=MAX_GROUPS)] = Field(
        default=(), description="State of each group, by index.", json_schema_extra={"x-list-keys": ["index"]}
    )
    unplaceable: Annotated[tuple[Unplaceable, ...], Field(max_length=64)] = Field(
        default=(),
        description="Why groups cannot be placed: rejected placements, closest to a fit first, then Nodes that cannot be used.",
    )
    terminating_pods: Annotated[tuple[TerminatingPod, ...], Field(max_length=256)] = Field(
        default=(),
        description="Pods that are terminating: those of earlier epochs, or of groups that no longer exist. If one remains "
        "here for more "
        "than a minute, its Node probably does not respond.",
    )
    benchmark: BenchmarkResult | None = Field(default=None, description="Result of the most recent benchmark.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions: ModelResolved, Placed, Bootstrapped, Verified, Ready, Benchmarked and Degraded. Reconciling "
        "is True while the operator works on the spec, Stalled is True when a user must change something.",
        json_schema_extra={"x-list-keys": ["type"]},
    )


class ModelDeployment(ApiModel):
    """ModelDeployment serves a model with one or more groups of Macs.

    A group holds one copy of the model together; each of its Macs runs one rank, which is one pod.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && "
                    "self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')",
                    "message": f"metadata.name must have at most {MAX_NAME_LENGTH} characters of [a-z0-9-], start with a "
                    "letter and end with a letter or digit (a Service has the same name)",
                }
            ]
        }
    )

    api_version: Literal["thunderfleet.io/v1alpha1"] = "thunderfleet.io/v1alpha1"
    kind: Literal["ModelDeployment"] = "ModelDeployment"
    metadata: ObjectMeta
    spec: ModelDeploymentSpec = Field(description="Desired state of the ModelDeployment.")
    status: ModelDeploymentStatus = Field(default=ModelDeploymentStatus(), description="Observed state of the ModelDeployment.")

    @property
    def wanted_groups(self) -> int:
        """The number of groups that should exist: 0 while suspended, else the decision of autoscaling, or ``spec.replicas``."""
        spec, scaled = self.spec, self.status.autoscaling
        if spec.suspend:
            return 0
        if spec.autoscaling is None:
            return spec.replicas
        found = scaled.replicas if scaled is not None else spec.replicas
        return min(max(found, spec.autoscaling.min_replicas), spec.autoscaling.max_replicas)

    @property
    def wakes(self) -> bool:
        """Whether a request starts a group if no group exists."""
        return not self.spec.suspend and self.spec.autoscaling is not None and self.spec.autoscaling.min_replicas == 0


def duration_seconds(text: str) -> int:
    """Seconds of a duration such as ``24h`` or ``1h30m``. Raises ``ValueError`` for anything else."""
    match = re.fullmatch(DURATION_PATTERN, text)
    if not text or match is None:
        raise ValueError(f"not a duration: {text!r} (expected hours, minutes and seconds such as 24h or 1h30m)")
    hours, minutes, seconds = (int(part[:-1]) if part else 0 for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
