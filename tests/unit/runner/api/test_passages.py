"""Passages that a model must continue: which are asked, what counts as wrong, and what each fault of a model does to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model
from thunderfleet_runner.api.passages import (
    CONTROL,
    LENGTHS,
    REPEATED,
    SERVED,
    STEP,
    Answers,
    Question,
    fitting,
    passage,
    questions,
)

from tests.support.models import copymodel

VOCABULARY = 6000


# --- which are asked ---


def test_the_tokens_of_a_passage_differ_as_long_as_there_are_enough() -> None:
    for vocabulary in (32_000, 151_936, 262_144):
        tokens = passage(9000, vocabulary)
        assert len(set(tokens)) == len(tokens) == 9000
        assert min(tokens) >= vocabulary // 32 and max(tokens) < vocabulary // 2


@pytest.mark.parametrize("length", LENGTHS)
def test_one_question_is_about_the_beginning_and_one_crosses_into_the_last_step(length: int) -> None:
    begins, crosses, cached = questions(length, 32_000)
    tokens = begins.passage
    for one in (begins, crosses, cached):
        start = tokens.index(one.part[0])
        assert one.passage == tokens and one.part + one.answer == tokens[start : start + len(one.part) + len(one.answer)]
    assert begins.part == tokens[:REPEATED]
    if length > STEP:
        edge = (length - 1) // STEP * STEP
        first, last = (tokens.index(crosses.answer[at]) for at in (0, -1))
        assert first < edge < last, "the answer is on both sides"


def test_what_is_wrong_is_named() -> None:
    question = questions(CONTROL, 32_000)[0]
    assert question.wrong(question.answer) is None
    found = [*question.answer[:4], 7]
    right = question.answer[4]
    assert question.wrong(found) == (
        "the prompt was a passage of 300 tokens and then 32 of these tokens again; "
        f"token 5 of the answer is 7 instead of {right}, which is at place 36 of the passage"
    )
    assert "token 3 of the answer is missing instead of" in (question.wrong(found[:2]) or "")


def test_only_lengths_for_which_there_is_room() -> None:
    found = [fitting(context, 32_000) for context in (347, 348, 2648, 9047, 9048)]
    assert found == [(), (300,), (300, 2600), (300, 2600), LENGTHS]
    assert [fitting(32_768, size) for size in (0, 256, 640, VOCABULARY, 19_200)] == [(), (), (300,), (300, 2600), LENGTHS]


def test_what_was_never_right_is_not_wrong() -> None:
    new = Answers().again("d")
    assert new.first(LENGTHS) == () and new.due(LENGTHS) == CONTROL
    unable = new.wrong(CONTROL, "x")
    assert not unable.able and unable.due(LENGTHS) is None and unable.ever == ()
    able = new.right(CONTROL).wrong(SERVED, "x")
    assert able.able and able.due(LENGTHS) == 9000 and able.ever == (CONTROL,)
    assert able.again("d").failed == (), "the next attempt is asked again"


def test_what_was_right_once_is_asked_before_the_group_serves() -> None:
    known = Answers().again("d", known=(CONTROL, SERVED, 9000))
    assert known.first(LENGTHS) == (CONTROL, SERVED) and known.first((CONTROL,)) == (CONTROL,)
    assert known.right(CONTROL).right(SERVED).due(LENGTHS) == 9000
    failed = known.unlike(9000)
    assert failed.failed == () and failed.again("d").first(LENGTHS) == LENGTHS, "what was wrong is asked first now"
    other = failed.again("e")
    assert (other.ever, other.first(LENGTHS), other.suspect) == ((), (), None), "other weights"
    assert Answers().again("", known=(CONTROL,)).ever == (), "of unknown weights nothing is remembered"


# --- a model that copies, and its faults ---


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "copier"
    copymodel.make(folder, VOCABULARY)
    return folder


def right(
    folder: Path, lengths: tuple[int, ...], cache: Callable[[], KVCache] = KVCache, change: Any = None
) -> list[list[bool]]:
    """By length, whether the two questions of it are answered."""
    model, _ = load_model(folder)
    if change is not None:
        change(model)

    def answered(question: Question) -> bool:
        caches = [cache() for _ in make_prompt_cache(model)]
        prompt = mx.array(question.passage + question.part)
        steps = generate_step(prompt, model, max_tokens=len(question.answer), prompt_cache=caches, prefill_step_size=STEP)
        return question.wrong([int(token) for token, _ in steps]) is None

    return [[answered(question) for question in questions(length, VOCABULARY)[:2]] for length in lengths]


def test_a_model_that_copies_is_right(copier: Path) -> None:
    assert right(copier, (CONTROL, SERVED)) == [[True, True], [True, True]]


class OffInTheSecondStep(KVCache):  # type: ignore[misc]  # mlx-lm has no types
    """Writes the second step of a prompt one place too early."""

    def update_and_fetch(self, keys: Any, values: Any) -> Any:
        if self.offset == STEP:
            self.offset -= 1
        return super().update_and_fetch(keys, values)


def test_a_wrong_offset_in_the_second_step_shows_only_in_a_longer_passage(copier: Path) -> None:
    control, longer = right(copier, (CONTROL, SERVED), OffInTheSecondStep)
    assert control == [True, True] and not all(longer)


@pytest.mark.parametrize("tensor", ["q_proj", "v_proj", "o_proj"])
def test_a_wrong_tensor_shows_in_the_control(copier: Path, tensor: str) -> None:
    def change(model: Any) -> None:
        wrong = getattr(model.model.layers[1].self_attn, tensor)
        wrong.weight = mx.zeros_like(wrong.weight)

    assert right(copier, (CONTROL,), change=change) == [[False, False]]
