"""Computes with the facts of a dry run and with configurations. Pure: no MLX and no files.

It imports no models of Pydantic: the dry run does not need them, and they take a third of the time of its imports.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from thunderfleet_runner.host.weightfiles import Tensor

TEXT_LIMIT = 500
LONGEST_WINDOW = 2**31 - 1
"""A NodeProfile has no larger number of tokens, and no sequence is longer."""
_CONTEXT_NAMES = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "n_positions",
    "seq_length",
    "model_max_length",
)
_LAYER_NAMES = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
_HEAD_NAMES = ("num_attention_heads", "n_heads", "n_head", "num_heads")
_KV_HEAD_NAMES = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_HIDDEN_NAMES = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
_WIDE_NAMES = ("intermediate_size", "n_inner", "ffn_dim", "d_ff")


@dataclass(frozen=True)
class StandIn:
    """The part of MLX's group that splitting a model uses."""

    place: int
    members: int

    def rank(self) -> int:
        return self.place

    def size(self) -> int:
        return self.members


@dataclass(frozen=True)
class Held:
    """Bytes of one layer's cache after fewer and after more tokens: of what a window bounds, and of the rest.

    ``window_tokens`` is the window of the first two; None when nothing is bounded.
    """

    window_tokens: int | None
    windowed: tuple[int, int]
    rest: tuple[int, int]


@dataclass(frozen=True)
class Cache:
    """The key-value cache of one layer for one sequence, in bytes; the fields are those of KVLayer in a NodeProfile."""

    fixed_bytes: int = 0
    bytes_per_token: int = 0
    window_tokens: int | None = None
    tensor_split: bool = False


@dataclass(frozen=True)
class Sample:
    """Peak bytes of workspace of a step of ``tokens`` tokens that attend to ``seen`` tokens, including themselves."""

    tokens: int
    seen: int
    nbytes: int


@dataclass(frozen=True)
class Workspace:
    """Peak bytes of one full step of prefill at the start of a sequence, and what each token before it adds."""

    nbytes: int
    per_token: int


@dataclass
class Facts:
    """Results of a dry run. ``ended`` is the reason if it stopped early; results it did not reach are None or missing."""

    total_bytes: int | None = None
    layers: int | None = None
    layer_bytes: tuple[int, ...] = ()
    shared_bytes: int = 0
    pipeline_refusal: str | None = None
    pipeline_asked: bool = False
    no_parts: str | None = "the dry run of mlx-lm ended before it loaded a part of the model"
    """Why a rank of a pipeline cannot be loaded from its own layers' weights alone; None if it can."""
    tensor: dict[int, tuple[int, ...] | str] = field(default_factory=dict)
    """World size to the bytes of each rank, or to the refusal."""
    kv: tuple[Cache, ...] | None = None
    kv_problem: str | None = None
    workspace: Workspace | None = None
    workspace_problem: str | None = None
    ended: str | None = None


def text(error: object) -> str:
    """A reason as one line, within the API's length limit."""
    return " ".join(str(error).split())[:TEXT_LIMIT] or type(error).__name__


def refused(error: Exception) -> str:
    """mlx-lm's error when it cannot split a model, as the text of a size."""
    return text(f"mlx-lm refuses it: {text(error)}")


# --- configurations -------------------------------------------------------------------------------------------------


def number(config: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The first positive integer with one of these names, in the configuration or in its text model's."""
    parts = [part for part in (config, config.get("text_config"), config.get("llm_config")) if isinstance(part, dict)]
    found = [part[name] for part in parts for name in names if type(part.get(name)) is int]
    return next((int(value) for value in found if 0 < value < 2**63), None)


def quantization(config: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Whether weights are quantized, and the bits of most of them where the configuration gives them."""
    inner = config.get("text_config")
    parts = [config, inner] if isinstance(inner, dict) else [config]
    for section in (part.get(name) for part in parts for name in ("quantization", "quantization_config")):
        if isinstance(section, dict):
            bits = section.get("bits")
            return True, bits if type(bits) is int and 1 <= bits <= 64 else _bits_of_a_mode(section)
    return False, None


def _bits_of_a_mode(section: Mapping[str, Any]) -> int | None:
    names = f"{section.get('quant_method')} {section.get('mode')} {section.get('format')} {section.get('quant_algo')}".lower()
    match = re.search(r"(?:fp|int)(4|8)", names)
    return int(match[1]) if match else None


def context_length(config: Mapping[str, Any]) -> int | None:
    """The longest sequence in tokens; None when the configuration gives none."""
    return number(config, _CONTEXT_NAMES)


def caches_by_configuration(config: Mapping[str, Any]) -> tuple[Cache, ...]:
    """An upper estimate for a model that could not be traced: every layer keeps 16-bit keys and values of all tokens."""
    layers, heads, hidden = (number(config, names) for names in (_LAYER_NAMES, _HEAD_NAMES, _HIDDEN_NAMES))
    if layers is None or heads is None or hidden is None or layers > 512:
        return ()
    width = number(config, ("head_dim",)) or -(-hidden // heads)
    return (Cache(bytes_per_token=2 * 2 * (number(config, _KV_HEAD_NAMES) or heads) * width),) * layers


def workspace_by_configuration(config: Mapping[str, Any], step: int) -> Workspace | None:
    """An upper estimate for a step of ``step`` tokens of a model that could not be traced.

    The widest activations of a layer (hidden, the MLP's three, queries and the rest of attention) in float32. None when the
    configuration gives no width.
    """
    hidden = number(config, _HIDDEN_NAMES)
    if hidden is None:
        return None
    wide = number(config, _WIDE_NAMES) or 4 * hidden
    return Workspace(4 * step * (6 * hidden + 3 * wide), 0)


_EXPERT_COUNT_NAMES = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_EXPERTS_USED_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "experts_per_token")
_EXPERT = re.compile(r"\.(?:experts|switch_mlp|switch_glu)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|tok_embeddings|word_embeddings|wte|embeddings)\.(?:weight|scales|biases)$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|output)\.weight$")


def experts(config: Mapping[str, Any]) -> int | None:
    """How many experts each layer of a mixture has; None for dense models."""
    count = number(config, _EXPERT_COUNT_NAMES)
    return count if count is not None and count > 1 else None


def active_bytes(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> int | None:
    """The weights that are read for one token: all but the experts that it does not use and the table of embeddings.

    A table that is also the output layer is read in full. None if the number of experts that a token uses is not known.
    """
    count, used = experts(config), number(config, _EXPERTS_USED_NAMES)
    if not tensors or (count is not None and used is None):
        return None
    separate_head = any(_HEAD.search(tensor.name) for tensor in tensors)
    total = 0
    for tensor in tensors:
        if separate_head and _EMBEDDING.search(tensor.name):
            continue
        share = _EXPERT.search(tensor.name) is not None and count is not None and used is not None
        total += tensor.nbytes * min(used or 0, count or 1) // (count or 1) if share else tensor.nbytes
    return total


def asked_ranks(world_size: int) -> tuple[int, ...]:
    """The ranks to try first: those that a model may treat differently. When they differ, all are tried."""
    return tuple(sorted({0, 1, world_size // 2, world_size - 1} & set(range(world_size))))


# --- caches and workspace -------------------------------------------------------------------------------------------


def cache_of(held: Held, few: int, many: int, tensor_split: bool) -> Cache:
    """A layer's cache, from what it held after ``few`` and after ``many`` tokens. Rounded up."""
    fixed, per_token = growth(*held.rest, few, many)
    window_fixed, window_per_token = growth(*held.windowed, few, many)
    if held.window_tokens is None or held.window_tokens > LONGEST_WINDOW or not window_per_token:
        grows = per_token + window_per_token
        return Cache(fixed_bytes=fixed + window_fixed, bytes_per_token=grows, tensor_split=tensor_split)
    if per_token:
        # A layer with both: the bounded part counts as full.
        bounded = window_fixed + window_per_token * held.window_tokens
        return Cache(fixed_bytes=fixed + bounded, bytes_per_token=per_token, tensor_split=tensor_split)
    return Cache(
        fixed_bytes=fixed + window_fixed,
        bytes_per_token=window_per_token,
        window_tokens=held.window_tokens,
        tensor_split=tensor_split,
    )


def growth(small: int, large: int, few: int, many: int) -> tuple[int, int]:
    """(fixed bytes, bytes per token), rounded up, from ``small`` bytes after ``few`` tokens and ``large`` after ``many``."""
    per_token = -(-max(large - small, 0) // (many - few))
    return max(small - per_token * few, 0), per_token


def workspace_of_steps(near: Sample, far: Sample | None, kv: Sequence[Cache]) -> Workspace:
    """The workspace from two full steps, at the start of a sequence and at its end.

    It is convex, so the line between the two is an upper bound.
    """
    slope = max(far.nbytes - near.nbytes, 0) / (far.seen - near.seen) if far is not None else 0.0
    return _workspace(near.nbytes, slope, near.tokens, kv)


def workspace_of_samples(samples: Sequence[Sample], step: int, kv: Sequence[Cache]) -> Workspace:
    """The workspace of a full step, from four short ones.

    It grows with the step's tokens, with the tokens they attend to, and (where attention stores its scores) with the product of
    both. ``samples``: two steps, each after few and after more tokens.
    """
    (short_near, short_far), (long_near, long_far) = _pairs(samples)
    slopes = [
        (far.nbytes - near.nbytes) / (far.seen - near.seen) for near, far in ((short_near, short_far), (long_near, long_far))
    ]
    tokens = long_near.tokens - short_near.tokens
    product = max((slopes[1] - slopes[0]) / tokens, 0.0)
    seen = max(slopes[0] - product * short_near.tokens, 0.0)
    bases = [near.nbytes - (product * near.tokens + seen) * near.seen for near in (short_near, long_near)]
    linear = max((bases[1] - bases[0]) / tokens, 0.0)
    constant = max(bases[0] - linear * short_near.tokens, 0.0)
    per_token = product * step + seen
    return _workspace(constant + linear * step + per_token * step, per_token, step, kv)


def _workspace(nbytes: float, per_token: float, step: int, kv: Sequence[Cache]) -> Workspace:
    """Adds the copy of one layer's cache while it grows, and what windows keep until the next step."""
    growing = max((layer.bytes_per_token for layer in kv if layer.window_tokens is None), default=0)
    overhang = sum(layer.bytes_per_token for layer in kv if layer.window_tokens is not None) * (step - 1)
    return Workspace(ceil(nbytes) + overhang + growing * step, ceil(per_token) + growing)


def _pairs(samples: Sequence[Sample]) -> tuple[tuple[Sample, Sample], tuple[Sample, Sample]]:
    by_tokens: dict[int, list[Sample]] = {}
    for sample in samples:
        by_tokens.setdefault(sample.tokens, []).append(sample)
    short, long = (sorted(by_tokens[tokens], key=lambda sample: sample.seen) for tokens in sorted(by_tokens))
    return (short[0], short[-1]), (long[0], long[-1])


@dataclass(frozen=True)
class Node:
    """One operation: its kind, the names of its operands, and the names and bytes of its results."""

    kind: str
    reads: tuple[str, ...]
    writes: tuple[tuple[str, int], ...]


VIEWS = frozenset(
    (
        "Broadcast", "BroadcastAxes", "Depends", "ExpandDims", "Flatten", "Reshape", "Slice", "DynamicSlice", "Split",
        "Squeeze", "StopGradient", "Transpose", "Unflatten", "AsStrided", "View", "Copy", "NumberOfElements",
    )
)  # fmt: skip
"""Operations whose result (nearly always) shares the memory of their first operand."""


def peak_bytes(nodes: Sequence[Node], kept: frozenset[str]) -> int:
    """Peak bytes alive while ``nodes`` run in order, each result freed after its last use.

    Operands that no node has written are not counted, nor are results in ``kept``.
    """
    owner: dict[str, str] = {}
    sizes: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        owners = [owner[name] for name in node.reads if name in owner]
        view = node.kind in VIEWS and bool(node.reads)
        for name, nbytes in node.writes:
            if view:
                if node.reads[0] in owner:
                    owner[name] = owner[node.reads[0]]
            else:
                owner[name], sizes[name] = name, nbytes
                owners.append(name)
        for name in owners:
            last[name] = position
    uncounted = {owner[name] for name in kept if name in owner}
    freed: dict[int, list[str]] = {}
    for name, position in last.items():
        freed.setdefault(position, []).append(name)
    alive = peak = 0
    for position, node in enumerate(nodes):
        alive += sum(nbytes for name, nbytes in node.writes if name in sizes and name not in uncounted)
        peak = max(peak, alive)
        alive -= sum(sizes[name] for name in freed.get(position, ()) if name not in uncounted)
    return peak
