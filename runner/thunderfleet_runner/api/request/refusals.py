"""Fields of other servers and services that would change the answer, and that are not honored here. Pure.

If they were ignored, a client could not see that the answer is not what it requested. Values that change nothing are accepted.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request.fields import Fields

BOOKKEEPING = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "priority",
    "request_id", "cache_prompt", "cache_salt",
})  # fmt: skip
"""Fields about accounts and caches, which are ignored without being named."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "adapter": (), "adapters": (), "add_generation_prompt": (True,), "allowed_token_ids": (), "audio": (), "bad_words": ([],),
    "best_of": (1,), "chat_template": (), "continue_final_message": (False,), "documents": ([],), "draft_model": (),
    "dry_multiplier": (0,), "echo": (False,), "function_call": (), "functions": ([],), "ignore_eos": (False,),
    "include_stop_str_in_output": (False,), "length_penalty": (1,), "logits_processors": ([],), "lora": (), "min_tokens": (0,),
    "mirostat": (0,), "modalities": (["text"],), "prompt_embeds": (), "prompt_logprobs": (0, False), "repeat_penalty": (1,),
    "role_mapping": (), "skip_special_tokens": (True,), "stop_token_ids": ([],), "suffix": ("",), "tfs_z": (1,), "top_a": (0,),
    "truncate_prompt_tokens": (), "typical_p": (1,), "use_beam_search": (False,), "web_search_options": (),
    "xtc_probability": (0,), "xtc_threshold": (),
}  # fmt: skip
_INSTEAD = {
    "function_call": "use tool_choice",
    "functions": "use tools",
    "repeat_penalty": "use repetition_penalty",
    "chat_template": "the model's own template is used",
}


def check(fields: Fields, also: Mapping[str, tuple[Any, ...]] = MappingProxyType({})) -> None:
    """Raises ApiError for a field that would change the answer and is not supported. Marks the other ones as read.

    ``also``: such fields of one dialect, with the values of each that change nothing.
    """
    for name, neutral in (*_NEUTRAL.items(), *also.items()):
        if name not in fields:
            continue
        value = fields.take(name)
        # The type is compared too, because True equals 1.
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral):
            hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise refused(name, f"{name} is not supported here and would change the answer: leave it out{hint}")
    fields.drop(BOOKKEEPING)
