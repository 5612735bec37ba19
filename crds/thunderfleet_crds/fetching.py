"""What a pod that reads from the hub reports to the operator: its termination message.

A kubelet keeps 4096 bytes of it. The sizes of a model are compressed, because most of its layers are alike. The pod refuses
a result that does not fit; it never truncates one.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.weights.parts import MAX_PARTS, WeightFile, numbers

if TYPE_CHECKING:
    from thunderfleet_crds.kinds.nodeprofile import Model

TOKEN_KEY: Final = "token"
"""The key of the Secret, and the name of the file."""
URI_HOSTS: Final = "THUNDERFLEET_URI_HOSTS"
"""Variables of a pod that reads from a URI: allowed hosts, those that may have private addresses, and certificates."""
URI_PRIVATE_HOSTS: Final = "THUNDERFLEET_URI_PRIVATE_HOSTS"
URI_AUTHORITIES: Final = "THUNDERFLEET_URI_AUTHORITIES"
MESSAGE_BYTES: Final = 4096
MODEL_BYTES: Final = 512 * 1024
TEXT_LENGTH: Final = 1200
VERSION_LENGTH: Final = 64
PROGRESS_FILE: Final = "progress.json"
"""In the staging folder of a pod that quantizes: its step, and the bytes done of all bytes, for the agent of its Mac."""


@dataclass(frozen=True)
class FetchResult:
    """The result of a pod. ``reason`` is Resolved, Fetched or Quantized if it succeeded."""

    reason: str
    message: str = ""
    retry_seconds: int | None = None
    """Seconds after which the hub accepts a new request."""
    commit: str | None = None
    manifest: str | None = None
    files: int = 0
    bytes: int = 0
    token_used: bool = False
    """Whether the hub accepted a token for this repository."""
    model: Model | None = None
    weight_files: tuple[WeightFile, ...] = ()
    """The layers in each weight file; empty if Macs can have only the whole model."""
    no_parts: str = ""
    """Why Macs can have only the whole model."""
    quantized_bytes: int = 0
    """Bytes that the weights will have when they are quantized, if that was requested."""
    mlx_lm: str = ""
    """Version of mlx-lm that has quantized them."""

    @property
    def text(self) -> str:
        """The termination message. Raises ValueError if it does not fit."""
        found: dict[str, Any] = {
            "reason": self.reason,
            "message": self.message[:TEXT_LENGTH],
            "retrySeconds": self.retry_seconds,
            "commit": self.commit,
            "manifest": self.manifest,
            "files": self.files,
            "bytes": self.bytes,
            "tokenUsed": self.token_used,
            "noParts": self.no_parts[:TEXT_LENGTH],
            "quantizedBytes": self.quantized_bytes or None,
            "mlxLM": self.mlx_lm[:VERSION_LENGTH],
        }
        if self.model is not None:
            found["model"] = _packed(self.model.dump())
        if self.weight_files:
            found["parts"] = _packed([[one.file, one.bytes, one.layers, int(one.shared)] for one in self.weight_files])
        text = json.dumps({key: value for key, value in found.items() if value not in (None, "", False)}, separators=(",", ":"))
        if len(text.encode()) > MESSAGE_BYTES and self.weight_files:
            why = f"it has {len(self.weight_files)} weight files, too many to report the layers in each"
            return replace(self, weight_files=(), no_parts=why).text
        if len(text.encode()) > MESSAGE_BYTES:
            raise ValueError(f"the result has {len(text.encode())} bytes; a termination message has at most {MESSAGE_BYTES}")
        return text

    @classmethod
    def parse(cls, text: str) -> FetchResult | None:
        """The value of a ``text``; None for anything else, such as the end of a log."""
        try:
            found = json.loads(text)
            return cls(
                reason=str(Reason(found["reason"])),
                message=str(found.get("message") or "")[:TEXT_LENGTH],
                retry_seconds=_count(found.get("retrySeconds"), 86_400),
                commit=_word(found.get("commit")),
                manifest=_word(found.get("manifest")),
                files=_count(found.get("files"), 2**31 - 1) or 0,
                bytes=_count(found.get("bytes"), 2**63 - 1) or 0,
                token_used=found.get("tokenUsed") is True,
                model=_model(found.get("model")),
                weight_files=_weight_files(found.get("parts")),
                no_parts=str(found.get("noParts") or "")[:TEXT_LENGTH],
                quantized_bytes=_count(found.get("quantizedBytes"), 2**63 - 1) or 0,
                mlx_lm=str(found.get("mlxLM") or "")[:VERSION_LENGTH],
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error):
            return None


def _count(value: object, limit: int) -> int | None:
    return min(max(value, 0), limit) if isinstance(value, int) else None


def _word(value: object) -> str | None:
    """A hash in hexadecimal digits."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) not in (40, 64) or not set(value) <= set("0123456789abcdef"):
        raise ValueError("not a hash")
    return value


def _packed(value: object) -> str:
    return base64.b85encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)).decode()


def _unpacked(value: object) -> Any:
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(base64.b85decode(str(value)), MODEL_BYTES)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("the sizes of the model are too long")
    return json.loads(raw)


def _model(value: object) -> Model | None:
    if value is None:
        return None
    # Only here, because every runner imports this module, and that one has many models, which take long to build.
    from thunderfleet_crds.kinds.nodeprofile import Model

    return Model.load(_unpacked(value))


def _weight_files(value: object) -> tuple[WeightFile, ...]:
    if value is None:
        return ()
    listed = _unpacked(value)
    if not isinstance(listed, list) or len(listed) > MAX_PARTS:
        raise ValueError("the list of weight files is too long")
    found = tuple(
        WeightFile(file=file, bytes=size, layers=layers, shared=bool(shared)) for file, size, layers, shared in listed
    )
    if len({one.file for one in found}) < len(found):
        raise ValueError("a weight file is listed twice")
    for one in found:
        numbers(one.layers)
    return found
