"""The test model's chat in tokens, for groups that get requests without a gateway."""

from pathlib import Path

from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.protocol import Prompt
from tokenizers import Tokenizer


def chat_prompt(model: Path) -> Prompt:
    """As the tiny model's chat template renders it."""
    text = f"<|im_start|>user: {tinymodel.MESSAGES[0]['content']}<|im_end|><|im_start|>assistant: "
    return Prompt.of(Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids)
