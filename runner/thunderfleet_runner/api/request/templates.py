"""Arguments that a request gives to the model's chat template. Pure.

Some names of the template are reserved for the server. If a request could set them, it could change the whole prompt.
"""

import json
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import ModelLimits

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MAX_ARGUMENTS = 32
MAX_BYTES = 16 * 1024
MAX_NAME = 64
RESERVED = frozenset({
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations",
    "documents", "kwargs", "max_length",
    "messages", "padding", "processor_kwargs", "return_assistant_tokens_mask", "return_dict", "return_tensors",
    "sanitize_control_tokens", "self",
    "template", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    # Names that templates call.
    "raise_exception", "strftime_now", "tojson", "range", "namespace", "dict", "lipsum", "cycler", "joiner",
    # The tokenizer's special tokens.
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens",
})  # fmt: skip
"""Names that are not for requests."""


def require(limits: ModelLimits, field: str) -> None:
    """Raises ApiError, which names the field of the messages, if the model has no chat template."""
    if not limits.chat_template:
        raise refused(field, f"{limits.model} has no chat template; use /v1/completions")


def arguments(fields: Fields) -> dict[str, Any]:
    """The arguments in ``reasoning_effort``, ``enable_thinking`` and ``chat_template_kwargs``, which overrides the others."""
    found: dict[str, Any] = {}
    if "reasoning_effort" in fields:
        found |= effort(fields.one_of("reasoning_effort", EFFORTS, "medium"))
    if "enable_thinking" in fields:
        found["enable_thinking"] = fields.boolean("enable_thinking")
    return found | _given(fields.take("chat_template_kwargs", {}))


def effort(value: str) -> dict[str, Any]:
    """The arguments for an effort: templates take it by name, or only whether there is any."""
    return {"reasoning_effort": value} | ({"enable_thinking": False} if value == "none" else {})


def _given(value: Any) -> dict[str, Any]:
    name = "chat_template_kwargs"
    if not isinstance(value, dict) or len(value) > MAX_ARGUMENTS:
        raise refused(name, f"{name} must be an object with at most {MAX_ARGUMENTS} fields")
    for key in value:
        if not key.isascii() or not key.isidentifier() or len(key) > MAX_NAME or key.startswith("_"):
            raise refused(name, f"{name} must have names of at most {MAX_NAME} letters, digits and underscores")
        if key in RESERVED or key.endswith("_token"):
            raise refused(name, f"{name} must not set {key}: the name is reserved")
    if len(json.dumps(value)) > MAX_BYTES:
        raise refused(name, f"{name} must have at most {MAX_BYTES >> 10} KiB")
    return value
