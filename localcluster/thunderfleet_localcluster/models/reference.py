"""Greedy tokens of one mlx-lm process without Thunderfleet: the reference that a group's answer must equal.

Run it as a process (``python -m thunderfleet_localcluster.models.reference MODEL PROMPT``), so that neither the demo nor a test
holds a model in memory.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from thunderfleet_lib.helpformat import HelpFormatter

from thunderfleet_localcluster.image import WITHOUT_COMPILER


def greedy(model_path: Path, prompt: str, tokens: int) -> list[int]:
    """Token ids of mlx-lm's greedy answer to one user message, at most ``tokens`` of them, the end token included."""
    from mlx_lm import load, stream_generate

    model, tokenizer = load(str(model_path))[:2]
    ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
    return [answer.token for answer in stream_generate(model, tokenizer, ids, max_tokens=tokens)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m thunderfleet_localcluster.models.reference",
        description=__doc__,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("model", type=Path, help="the model's folder")
    parser.add_argument("prompt", help="the user message")
    parser.add_argument("--tokens", type=int, default=48, help="tokens to generate at most")
    options = parser.parse_args()
    os.environ.update(WITHOUT_COMPILER)
    json.dump(greedy(options.model, options.prompt, options.tokens), sys.stdout)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
