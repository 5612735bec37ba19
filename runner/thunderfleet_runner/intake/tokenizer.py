"""The model's tokenizer and chat template."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thunderfleet_lib import jsonbounds

from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.api.request.call import Call
from thunderfleet_runner.api.request.constraints import Constraint
from thunderfleet_runner.api.request.sampling import model_defaults
from thunderfleet_runner.intake import limits
from thunderfleet_runner.intake.limits import EXIT_MEMORY
from thunderfleet_runner.intake.pooling import POOLING_FILE, vector_size
from thunderfleet_runner.intakeprotocol import ParseTools, ToolsParsed
from thunderfleet_runner.protocol import Prompt, Sampling
from thunderfleet_runner.rank import grammar, mlxlm
from thunderfleet_runner.rank.mlxlm import vocabulary

TABLE_SECONDS = 20.0
"""CPU seconds to make the table of tokens for formats, once: a second for 150,000 tokens."""
CONFIG_BYTES = 1 << 20
"""Maximum bytes of a generation_config.json, or of POOLING_FILE."""


class Tokenizer:
    """A model's tokenizer and chat template, used as mlx-lm's server uses them."""

    def __init__(self, tokenizer: Any, defaults: Sampling, config: dict[str, Any], pooling: dict[str, Any] | None) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._pooling = pooling
        self._tokenizing = mlxlm.Tokenizing(tokenizer)
        self._formats = grammar.Formats(tokenizer)
        self._harmony = tokenizer.tool_parser is mlxlm.families.harmony
        self.calls = mlxlm.call_format(tokenizer)
        """How the model writes tool calls."""
        self.defaults = defaults
        """How tokens are sampled where a request does not say it."""

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> "Tokenizer":
        """The tokenizer in ``folder``. Raises whatever the library raises."""
        pooling = _object(folder / POOLING_FILE)
        return cls(mlxlm.load_tokenizer(folder, config), _defaults(folder, vocabulary(config)), config, pooling)

    def warm_up(self) -> None:
        """Renders and tokenizes a text: libraries import and compile on first use. A bad template may end the process."""
        for messages in ((), ({"role": "user", "content": "Hello"},)):
            try:
                self._tokenizing.segments(messages=messages, tools=(), prompt="Hello", template={})
            except MemoryError:
                os._exit(EXIT_MEMORY)
            except Exception:
                # A template may refuse this chat.
                continue

    def prompt(self, call: Call) -> Prompt:
        """The prompt of a request. Raises ApiError when the template or the tokenizer rejects it."""
        if call.tokens:
            return Prompt.of(call.tokens)
        try:
            segments, types, state = self._segments(call, call.template)
            if self._harmony and call.messages and call.constrained is not None:
                # The format begins at once, so the prompt already contains the header of the answer.
                segments[-1] += self._tokenizer.encode(mlxlm.families.HARMONY_ANSWER, add_special_tokens=False)
                state = "normal"
            return Prompt.of(*segments, types=types, initial_state=state)
        except MemoryError:
            raise
        except Exception as error:
            raise refused(None, f"the model's chat template or tokenizer rejects this prompt: {str(error)[:500]}") from error

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; ``special``: with those that the tokenizer adds. Raises ApiError."""
        try:
            return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=special)]
        except MemoryError:
            raise
        except Exception as error:
            raise refused("prompt", f"the model's tokenizer rejects this prompt: {str(error)[:500]}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(list(tokens)))

    def vector_size(self, name: str) -> int:
        """Values of the model's vectors. Raises ApiError when it makes none."""
        found = vector_size(self._config, self._pooling, name)
        if isinstance(found, str):
            raise ApiError(404, found, param="model", code="model_not_found")
        return found

    def _segments(self, call: Call, template: Mapping[str, Any]) -> tuple[list[list[int]], list[str], str]:
        try:
            return self._tokenizing.segments(
                messages=_thinking(call.messages) if self._harmony else call.messages,
                tools=call.tools.offered,
                prompt=call.text,
                template=template,
            )
        except TypeError:
            # Jinja templates accept any argument, but some models have a function instead. Many clients always send an effort.
            if "reasoning_effort" not in template:
                raise
            return self._segments(call, {name: value for name, value in template.items() if name != "reasoning_effort"})

    def grammar(self, constraint: Constraint) -> str:
        """A format that the ranks can force. Raises ApiError when it is invalid or takes too much."""
        words = json.loads(constraint.source) if constraint.kind == "choice" else ()
        try:
            # Schemas of tools are mainly descriptions, and often use features that a grammar cannot enforce.
            lenient = constraint.param == "tools"
            if not self._formats.made:
                with limits.apart(TABLE_SECONDS):
                    self._formats.make()
            found = grammar.compiled(constraint.kind, constraint.source, words, lenient=lenient)
            self._formats.check(found)
        except grammar.Unusable as error:
            raise refused(constraint.param, f"{constraint.param} cannot be used: {error}") from error
        return found

    def parse_tools(self, question: ParseTools) -> ToolsParsed:
        """What the model wrote as tool calls."""
        tools = json.loads(question.tools) if question.tools else []
        calls, unparsed = mlxlm.parse_tools(self._tokenizer.tool_parser, tools, question.texts)
        return ToolsParsed(calls=tuple(calls), unparsed=tuple(unparsed))


def _thinking(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """gpt-oss' template has another name for thoughts, and takes them beside calls only, instead of text."""
    found = []
    for message in messages:
        thoughts = message.get("reasoning_content")
        if thoughts and message.get("tool_calls") and not message["content"]:
            message = {**message, "thinking": thoughts}
        found.append(message)
    return found


def _defaults(folder: Path, vocabulary: int) -> Sampling:
    """The model's sampling; greedy when it has none, or none that can be parsed."""
    config = _object(folder / "generation_config.json")
    return model_defaults(config, vocabulary) if config is not None else Sampling()


def _object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is none that can be read."""
    try:
        with path.open("rb") as file:
            found = jsonbounds.loads(file.read(CONFIG_BYTES), values=10_000, depth=16)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
