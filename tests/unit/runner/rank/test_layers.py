"""The comparison of a model's layers with the whole ones. That of real shards is in test_generation_group."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from thunderfleet_runner.rank import mlxlm
from thunderfleet_runner.rank.checks import layers
from thunderfleet_runner.rank.checks.layers import LayerWrong, check

ROOM = 1 << 30


class Group:
    """Of ranks that all have the whole model."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return 2


def compared(model: Any, folder: Path, group: Group | None = None, room: int = ROOM) -> layers.Compared:
    return check(model, folder, group or Group(), room=room, step=lambda: None)


def test_a_whole_layer_is_like_itself(tiny: Path) -> None:
    model, _ = mlxlm.load_lazily(tiny)
    found = compared(model, tiny)
    assert (found.layers, found.left) == ((0,), "")
    assert compared(model, tiny, Group(1)).layers == (), "rank 0 compares"


@pytest.mark.parametrize("tensor", ["self_attn.v_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"])
def test_a_layer_that_is_split_wrong_is_named(tiny: Path, tensor: str) -> None:
    model, _ = mlxlm.load_lazily(tiny)
    right = dict(mlxlm.layers(model)[0].named_modules())[tensor.rpartition(".")[0]]
    # As if two ranks had each other's part.
    right.weight = mx.roll(right.weight, right.weight.shape[-1] // 2, -1)
    if tensor.startswith("input"):
        right.weight = right.weight * 2
    with pytest.raises(LayerWrong, match="layer 0: what the ranks together add to a token differs by "):
        compared(model, tiny)


def test_a_layer_for_which_there_is_no_room_is_left_out(tiny: Path) -> None:
    model, _ = mlxlm.load_lazily(tiny)
    found = compared(model, tiny, room=1000)
    assert (found.layers, found.left) == ((), "the whole layer 0 of 0.0 GiB is too large")


def test_a_layer_of_another_kind_is_left_out(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = mlxlm.load_lazily(tiny)

    class Other(type(mlxlm.layers(model)[0])):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            return x

    mlxlm.layers(model)[0].__class__ = Other
    assert compared(model, tiny).left.startswith("layer 0 cannot be computed by itself: ")
