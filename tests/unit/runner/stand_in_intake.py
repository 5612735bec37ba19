"""An intake without a model: the real one, with a tokenizer that gives each word the token 1, or does what the word says."""

import os
import signal
import time
from typing import Any

from thunderfleet_runner import framing
from thunderfleet_runner.intake import answering
from thunderfleet_runner.intakeprotocol import ParseTools, ToolsParsed
from thunderfleet_runner.protocol import Prompt, Sampling


def _burn() -> None:
    while True:
        pass


def _grow() -> None:
    # Without pauses it would reach the limit of CPU time first.
    held = []
    while True:
        held.append(b"x" * (1 << 26))
        time.sleep(0.01)


_DEEDS = {
    "burn": _burn,
    "grow": _grow,
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "pause": signal.pause,
}


class Words:
    """Counts words."""

    defaults = Sampling()
    calls = "marked"

    def prompt(self, call: Any) -> Prompt:
        text = str(call.text or call.messages)
        if text in _DEEDS:
            _DEEDS[text]()
        return Prompt.of([1] * len(text.split()))

    def grammar(self, constraint: Any) -> str:
        _DEEDS.get(constraint.source, lambda: None)()
        return str(constraint.source)

    def parse_tools(self, question: ParseTools) -> ToolsParsed:
        for text in question.texts:
            if text in _DEEDS:
                _DEEDS[text]()
        return ToolsParsed(calls=tuple({"name": text, "arguments": "{}"} for text in question.texts))


answering.serve(framing.inherited(os.environ), Words())
