"""How a pipeline's stages exchange what they compute, and how many tokens a prompt's step has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from thunderfleet_crds.vocabulary import Split
from thunderfleet_runner.rank import loading, mlxlm
from thunderfleet_runner.rank.mlxlm.batching.pipelines import FIRST_STEP, STAGE_SECONDS, STEPS, Pace

Said = list[str]


class Group:
    """The middle one of three stages."""

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 3


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What the stage exchanges and evaluates, in order."""
    found: Said = []
    evaluate = mx.eval

    def evaluated(*arrays: Any) -> None:
        found.append("eval")
        evaluate(*arrays)

    def message(name: str) -> Any:
        def called(values: Any, *_arguments: Any, **_options: Any) -> Any:
            found.append(name)
            return values + 0

        return called

    monkeypatch.setattr(mx, "eval", evaluated)
    for name in ("recv_like", "send", "recv"):
        monkeypatch.setattr(mx.distributed, name, message(name))
    monkeypatch.setattr(mx.distributed, "all_gather", lambda h: message("all_gather")(mx.concatenate([h, h, h])))
    return found


@pytest.fixture
def stage(deep: Path, said: Said) -> Iterator[Any]:
    model, _ = mlxlm.load_lazily(deep)
    loading.split_model(model, Split.PIPELINE, Group(), ((2, 4), (1, 2), (0, 1)))
    plain = type(model).__call__
    mlxlm.evaluate_apart(model)
    yield model
    type(model).__call__ = plain


def test_a_prompts_step_is_received_computed_and_sent_one_after_the_other(stage: Any, said: Said) -> None:
    cache = mlxlm.prompt_cache(stage)
    stage(mx.array([[1, 2, 3]]), cache=cache)
    assert said == ["recv_like", "eval", "eval", "send", "eval"], "and nothing is gathered"
    assert cache[0].offset == 3


def test_an_answers_step_is_computed_as_mlx_lm_does(stage: Any, said: Said) -> None:
    stage(mx.array([[1]]), cache=mlxlm.prompt_cache(stage))
    assert said == ["recv_like", "send", "all_gather"]


@pytest.mark.parametrize(
    ("tokens", "seconds", "step"),
    [
        (512, 0.1, 2048), (2048, 1.99, 2048), (512, 0.6, 1024), (512, 2.1, 256), (256, 60.0, 256), (2048, 17.0, 256),
        (100, 90.0, FIRST_STEP), (0, 0.0, FIRST_STEP),
    ],
)  # fmt: skip
def test_a_step_is_as_long_as_a_stage_stays_short(tokens: int, seconds: float, step: int) -> None:
    pace = Pace()
    pace.add(tokens, seconds)
    assert pace.step == step
    assert step == STEPS[-1] or tokens < 256 or seconds / tokens * step < STAGE_SECONDS
