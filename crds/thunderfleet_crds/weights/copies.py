"""The state of a model's files on one Mac, as NodeProfile, ModelCache and ModelDeployment show it."""

from __future__ import annotations

from pydantic import Field

from thunderfleet_crds.meta.apimodel import ApiModel
from thunderfleet_crds.meta.fields import Int64, Message, Name, ReasonText, Time, Token
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.parts import Ranges


class CopyState(ApiModel):
    """Which part of a model a Mac has, and the source of the rest."""

    phase: CopyPhase = Field(
        default=CopyPhase.WAITING,
        description="Waiting (for a download, a source or free disk), Copying, Quantizing (a pod converts the repository), "
        "Checking (hashes are computed), Complete (every file has its hash), Part (every file of the layers that the Mac needs "
        "has its hash) or Failed.",
    )
    layers: Ranges | None = Field(
        default=None,
        description="Layers of the part of the model that the Mac has, such as 0-13; unset if it has no part of it.",
    )
    bytes: Int64 = Field(default=0, description="Size of the model's files that the Mac needs, in bytes.")
    bytes_done: Int64 = Field(default=0, description="Bytes of these files that have arrived.")
    bytes_per_second: Int64 | None = Field(
        default=None, description="Transfer rate over the last few seconds, in bytes per second."
    )
    seconds_left: Int64 | None = Field(default=None, description="Estimated time until all bytes have arrived, in seconds.")
    source: CopySource | None = Field(
        default=None, description="Where the files come from: Hub, or Peer (another Mac). Kept after the copy is complete."
    )
    peer: Name | None = Field(
        default=None,
        description="Name of the Node that sends the most bytes, if source is Peer. Unset if the model was on the disk "
        "before the agent started.",
    )
    link: Name | None = Field(
        default=None, description="Name of the ThunderboltLink that carries these bytes; unset if they come over the LAN."
    )
    reason: ReasonText | None = Field(
        default=None, description="Machine-readable reason in CamelCase, if the copy does not proceed."
    )
    message: Message = Field(default="", description="Human-readable description of what the copy waits for, or why it failed.")


class MacCopy(CopyState):
    """The model's files on one Mac."""

    node: Name = Field(description="Name of the Node.")


class ModelCopy(CopyState):
    """A model of the Mac's model store."""

    repository: Name = Field(description="Repository on the Hugging Face Hub.")
    commit: Token = Field(description="Commit of the repository.")
    manifest: Token = Field(description="SHA-256 of the model's manifest: its files with sizes and hashes.")
    used_at: Time | None = Field(
        default=None,
        description="Time of the last use, accurate to one hour. Set only if nothing needs the model on this Mac: no "
        "ModelCache assigns it, no ModelDeployment names it, and no group serves it. Such models are removed "
        "when disk space is needed, the least recently used first.",
    )
