"""Rendering and tokenizing a prompt as mlx-lm's server does, without its loop: this runs in the intake process."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_lm import server as _server


class Tokenizing(_server.ResponseGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's ``_tokenize`` for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        # Not the base's: it starts a thread.
        self.model_provider = Namespace(processor=None, cli_args=Namespace(chat_template_args={}))
        self._tokenizer = tokenizer

    def segments(
        self, *, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], prompt: str, template: Mapping[str, Any]
    ) -> tuple[list[list[int]], list[str], str]:
        """Segments, their types and the initial state of a chat, or of ``prompt`` when there are no messages.

        Raises whatever the model's template raises.
        """
        copied = json.loads(json.dumps(list(messages)))
        request = _server.CompletionRequest("chat" if messages else "text", prompt, copied, list(tools) or None, None)
        _, segments, types, state, _ = self._tokenize(self._tokenizer, request, Namespace(chat_template_kwargs=dict(template)))
        return [list(map(int, segment)) for segment in segments], list(types), str(state)
