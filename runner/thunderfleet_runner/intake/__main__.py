"""``python -m thunderfleet_runner.intake --model FOLDER``: one intake process, until its supervisor closes the channel."""

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from thunderfleet_lib import collector

from thunderfleet_runner import framing
from thunderfleet_runner.host import parentdeath
from thunderfleet_runner.intake import limits

WARM_UP_SECONDS = 2.0
"""CPU seconds to render and tokenize a text for the first time, imports included."""


def load(folder: Path) -> Any:
    """The tokenizer of the model in ``folder``."""
    import mlx.core as mx

    # mlx-lm creates streams of the default device when it is imported, and a tokenizer needs no GPU.
    mx.set_default_device(mx.cpu)
    with collector.paused():
        from thunderfleet_runner.intake.tokenizer import Tokenizer

    return Tokenizer.load(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))


def main() -> int:
    """Serves questions. Returns the exit code; a question that needs too much ends the process instead."""
    # Warnings are not logged: mlx-lm logs one for each request with tools, if the model has no format for tool calls.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(prog="intake")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--group", help="name of the group, only to identify the process")
    parser.add_argument("--cold", action="store_true", help="do not warm up the tokenizer before the first request")
    arguments = parser.parse_args()
    end = framing.inherited(os.environ)
    if os.environ.get(framing.PARENT_VARIABLE, "").isdigit():
        parentdeath.die_with(int(os.environ[framing.PARENT_VARIABLE]))
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    tokenizer = load(arguments.model)
    from thunderfleet_runner.intake.answering import serve

    limits.bound_memory()
    if not arguments.cold:
        with limits.cpu(WARM_UP_SECONDS):
            tokenizer.warm_up()
    serve(end, tokenizer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
