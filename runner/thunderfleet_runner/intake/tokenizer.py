"""The model's tokenizer and chat template."""

import json
import os
from pathlib import Path
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.openai.requests import Call
from thunderfleet_runner.intake.limits import EXIT_MEMORY
from thunderfleet_runner.intakeprotocol import ParseTools, ToolsParsed
from thunderfleet_runner.protocol import Prompt
from thunderfleet_runner.rank import mlxlm


class Tokenizer:
    """A model's tokenizer and chat template, used as mlx-lm's server uses them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizing = mlxlm.Tokenizing(tokenizer)

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> "Tokenizer":
        """The tokenizer in ``folder``. Raises whatever the library raises."""
        return cls(mlxlm.load_tokenizer(folder, config))

    def warm_up(self) -> None:
        """Renders and tokenizes something: libraries import and compile on first use. A bad template may end the process."""
        for messages in ((), ({"role": "user", "content": "Hello"},)):
            try:
                self._tokenizing.segments(messages=messages, tools=(), prompt="Hello")
            except MemoryError:
                os._exit(EXIT_MEMORY)
            except Exception:
                # A template may refuse this chat.
                continue

    def prompt(self, call: Call) -> Prompt:
        """The prompt of a request. Raises ApiError when the template or the tokenizer rejects it."""
        fields = call.fields
        if fields["kind"] == "tokens":
            return Prompt.of(fields["tokens"])
        if fields.get("tools") and not self._tokenizer.has_tool_calling:
            raise refused(None, "this model cannot call tools: its chat template has no tool call format that mlx-lm supports")
        try:
            segments, types, state = self._tokenizing.segments(
                messages=fields.get("messages", ()), tools=fields.get("tools", ()), prompt=fields.get("prompt", "")
            )
            return Prompt.of(*segments, types=types, initial_state=state)
        except MemoryError:
            raise
        except Exception as error:
            raise refused(None, f"the model's chat template or tokenizer rejects this prompt: {str(error)[:500]}") from error

    def parse_tools(self, question: ParseTools) -> ToolsParsed:
        """What the model wrote as tool calls."""
        tools = json.loads(question.tools) if question.tools else []
        calls, unparsed = mlxlm.parse_tools(self._tokenizer.tool_parser, tools, question.texts)
        return ToolsParsed(calls=tuple(calls), unparsed=tuple(unparsed))
