"""The test model: the same everywhere, loadable, and with logits that differ enough to compare token ids."""

import hashlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.rank import mlxlm


def test_it_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert tinymodel.main([str(tmp_path / name)]) == 0
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert tinymodel.main([str(tmp_path / "c"), "--seed", "3"]) == 0
    weights = [hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).digest() for name in ("a", "c")]
    assert weights[0] != weights[1]


def test_every_id_is_another_printable_string(tmp_path: Path) -> None:
    tinymodel.make(tmp_path)
    tokenizer = mlxlm.load_tokenizer(tmp_path, {})
    texts = [tokenizer.decode([token]) for token in range(tinymodel.VOCABULARY)]
    assert len(set(texts)) == tinymodel.VOCABULARY
    assert all(text.isprintable() and text for text in texts)
    assert tokenizer.decode(tokenizer.encode("Which Macs are here, 2 or 3?")) == "Which Macs are here, 2 or 3?"


def test_the_answer_is_never_a_close_call(tmp_path: Path) -> None:
    tinymodel.make(tmp_path)
    model, config = mlxlm.load_lazily(tmp_path)
    tokenizer = mlxlm.load_tokenizer(tmp_path, config)
    messages = [dict(message) for message in tinymodel.MESSAGES]
    inputs = mx.array([tokenizer.apply_chat_template(messages, add_generation_prompt=True)])
    cache = mlxlm.prompt_cache(model)
    answer: list[int] = []
    for _ in range(tinymodel.TOKENS):
        logits = model(inputs, cache=cache)[0, -1]
        assert logits.dtype == mx.float32
        top: Any = mx.sort(logits)[-2:].tolist()
        second, best = top
        assert best - second > 1e-3
        likeliest: Any = mx.argmax(logits).item()
        answer.append(int(likeliest))
        inputs = mx.array([[answer[-1]]])
    assert not set(answer) & set(tokenizer.eos_token_ids), "the answer must not end before its length"
    assert len(set(answer)) > tinymodel.TOKENS // 2, "an answer that repeats itself compares little"


def test_bad_arguments_are_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tinymodel.main([str(tmp_path), "--layers", "0"]) == 2
    (tmp_path / "file").write_text("")
    assert tinymodel.main([str(tmp_path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err
