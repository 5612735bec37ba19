"""The demo's model: small enough to ship (1.7 MB), trained to answer questions about Thunderfleet in words.

conversations   the questions and answers that it was trained on
train           trains it and writes the files in ``files/``
files/          config, tokenizer and weights (qwen2, float32), in mlx-lm's format

It is float32 and unquantised. The best two logits of its answers stay far enough apart that two ranks, which add numbers in
another order than one process, choose the same tokens. Tests use a random model (``tinymodel``) instead.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

REPOSITORY: Final = "thunderfleet/demo-qwen2"
"""The name below a model folder under which the demo deploys it."""
FILES: Final = Path(__file__).resolve().parent / "files"
ANSWER_TOKENS: Final = 128
"""No answer is longer."""


def install(folder: Path) -> None:
    """Copies the model's files into ``folder``, which is created if it does not exist. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(FILES.iterdir()):
        shutil.copyfile(file, folder / file.name)
