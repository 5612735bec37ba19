"""Quantization of a repository of the hub on a Mac: its parameters, and the name of the result on the Macs. Pure.

The result does not have the repository's name, because a ModelDeployment without ``quantize`` must not get quantized weights.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

from pydantic import Field

from thunderfleet_crds.meta.apimodel import ApiModel
from thunderfleet_crds.vocabulary import BITS, GROUP_SIZES, listed

MAX_NAME: Final = 96
"""Characters of the last part of a repository's name."""


class Quantize(ApiModel):
    """How mlx-lm quantizes the weights."""

    bits: Annotated[int, Field(ge=BITS[0], le=BITS[-1])] = Field(
        default=4,
        description=f"Bits of each weight: {listed(BITS)}.",
        json_schema_extra={"x-rule": f"self in [{', '.join(map(str, BITS))}]", "x-message": f"bits must be {listed(BITS)}"},
    )
    group_size: Annotated[int, Field(ge=GROUP_SIZES[0], le=GROUP_SIZES[-1])] = Field(
        default=64,
        description=f"Number of weights that share a scale and a bias: {listed(GROUP_SIZES)}.",
        json_schema_extra={
            "x-rule": f"self in [{', '.join(map(str, GROUP_SIZES))}]",
            "x-message": f"groupSize must be {listed(GROUP_SIZES)}",
        },
    )

    @property
    def text(self) -> str:
        """A description for messages."""
        return f"{self.bits} bits in groups of {self.group_size}"


def kept_name(repository: str, quantize: Quantize | None) -> str:
    """The name under which Macs keep a model."""
    if quantize is None:
        return repository
    suffix = f"_{quantize.bits}bit_g{quantize.group_size}"
    owner, slash, name = repository.rpartition("/")
    if len(name) + len(suffix) > MAX_NAME:
        suffix = f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}{suffix}"
        name = name[: MAX_NAME - len(suffix)]
    return f"{owner}{slash}{name}{suffix}"


def conversion_id(manifest: str, quantize: Quantize) -> str:
    """The id of a conversion while its result is unknown. ``manifest``: digest of the repository's files."""
    return hashlib.sha256(f"{manifest} {quantize.bits} {quantize.group_size}".encode()).hexdigest()
