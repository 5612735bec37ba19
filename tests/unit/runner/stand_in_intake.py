"""An intake without a model: the real one, with a tokenizer that gives each word the token 1."""

import os
from typing import Any

from thunderfleet_runner import framing
from thunderfleet_runner.intake import answering
from thunderfleet_runner.protocol import Prompt


class Words:
    """Counts words."""

    def prompt(self, call: Any) -> Prompt:
        return Prompt.of([1] * len(str(call.fields.get("prompt") or call.fields.get("messages")).split()))


answering.serve(framing.inherited(os.environ), Words())
