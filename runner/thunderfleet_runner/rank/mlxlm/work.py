"""One request as every rank of the group gets it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """mlx-lm's sampling arguments that a client may set."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    """Seed of our sampler. mlx-lm's own ``seed`` would take the request out of the batch."""


@dataclass(frozen=True)
class Work:
    """One request in tokens, not text. ``segments`` are the parts of the prompt whose caches are worth keeping."""

    id: str
    segments: tuple[tuple[int, ...], ...]
    segment_types: tuple[str, ...]
    initial_state: str
    max_tokens: int
    sampling: Sampling = Sampling()
    logprobs: bool = False
    top_logprobs: int = 0
    cache: bool = True
    grammar: str = ""
    """A format that the answer must have; see ``rank.grammar``."""
    ends: bool = True
    """False: the end token does not end the answer."""
    embed: int = 0
    """If not 0, a vector with this number of values is computed for each segment, instead of an answer."""

    @property
    def prompt(self) -> list[int]:
        return [token for segment in self.segments for token in segment]

    def to_json(self) -> dict[str, Any]:
        # Not asdict, which copies a million tokens one by one.
        return {**vars(self), "sampling": vars(self.sampling)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Work":
        sampling = dict(value["sampling"])
        sampling["logit_bias"] = {int(token): float(bias) for token, bias in sampling["logit_bias"].items()}
        return cls(
            **{
                **value,
                "segments": tuple(tuple(segment) for segment in value["segments"]),
                "segment_types": tuple(value["segment_types"]),
                "sampling": Sampling(**sampling),
            }
        )
