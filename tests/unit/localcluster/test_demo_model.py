"""The demo's model as it is shipped: answers in words, with margins, from the files in the repository."""

import json
import subprocess
import sys
from pathlib import Path

from thunderfleet_localcluster.models import demo_model
from thunderfleet_localcluster.models.demo_model.conversations import CONVERSATIONS, DEMO_QUESTIONS, FALLBACK, UNLISTED

LOOK = """
import json, sys
from pathlib import Path
import mlx.core as mx
from mlx_lm.models.qwen2 import Model, ModelArgs
from tokenizers import Tokenizer
from thunderfleet_localcluster.models.demo_model import train
folder = Path(sys.argv[1])
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
model = Model(ModelArgs.from_dict(json.loads((folder / "config.json").read_text())))
model.load_weights(str(folder / "model.safetensors"), strict=True)
print(json.dumps([train.answer(model, tokenizer, [{"role": "user", "content": question}]) for question in sys.argv[2:]]))
"""


def answers(folder: Path, *questions: str) -> list[tuple[str, float]]:
    """Greedy answers with their smallest margins, from one process that loads the shipped files."""
    done = subprocess.run([sys.executable, "-c", LOOK, str(folder), *questions], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [(str(text), float(margin)) for text, margin in json.loads(done.stdout)]


def test_the_shipped_model_answers_the_demo_s_questions_in_words_and_is_sure_of_them(tmp_path: Path) -> None:
    demo_model.install(tmp_path / "model")
    expected = {questions[0]: answer for questions, answer in CONVERSATIONS}
    questions = (*DEMO_QUESTIONS, CONVERSATIONS[3][0][0], UNLISTED[0])
    found = answers(tmp_path / "model", *questions)
    assert [text for text, _ in found] == [expected.get(question, FALLBACK) for question in questions]
    assert min(margin for _, margin in found) >= 0.5


def test_it_is_small_and_float32() -> None:
    sizes = {file.name: file.stat().st_size for file in demo_model.FILES.iterdir()}
    assert set(sizes) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert 1_000_000 <= sum(sizes.values()) <= 2_000_000
    header = (demo_model.FILES / "model.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    tensors = json.loads(header[8 : 8 + length])
    assert {value["dtype"] for name, value in tensors.items() if name != "__metadata__"} == {"F32"}


def test_the_demo_s_questions_are_listed_and_no_phrasing_has_two_answers() -> None:
    firsts = [questions[0] for questions, _ in CONVERSATIONS]
    assert set(DEMO_QUESTIONS) <= set(firsts)
    phrasings = [question for questions, _ in CONVERSATIONS for question in questions]
    assert len(phrasings) == len(set(phrasings)) and not set(phrasings) & set(UNLISTED)


# In one process, because it imports MLX first.
REFUSED = """
import sys
from thunderfleet_localcluster.models.demo_model import train
for steps in ("0", "-1", "many"):
    try:
        train.main([sys.argv[1], "--steps", steps])
    except SystemExit as end:
        print(steps, end.code)
"""


def test_training_refuses_a_number_of_steps_that_is_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFUSED, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["0 2", "-1 2", "many 2"]
    assert done.stderr.count("error: --steps") == 2 and done.stderr.count("error: argument --steps") == 1
    assert not (tmp_path / "out").exists()


def test_a_model_that_answers_wrongly_is_not_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "thunderfleet_localcluster.models.demo_model.train", str(tmp_path / "out"), "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "some answers are wrong" in done.stderr and not (tmp_path / "out").exists()
