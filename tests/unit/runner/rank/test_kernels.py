"""The check of a Mac's products, with kernels that are wrong in chosen ways."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.switch_layers import SwitchLinear
from thunderfleet_runner.rank.checks import kernels
from thunderfleet_runner.rank.checks.kernels import KernelWrong, check


class Model(nn.Module):  # type: ignore[misc]
    """Dense and expert matrices, three of one shape; quantized if ``mode`` is given."""

    def __init__(self, kind: Any = mx.bfloat16, mode: str | None = None, bits: int = 4, group_size: int = 32) -> None:
        super().__init__()
        mx.random.seed(3)
        self.norm = nn.RMSNorm(128)
        self.one, self.two = nn.Linear(128, 64), nn.Linear(128, 64)
        self.wide = nn.Linear(64, 320, bias=False)
        self.experts = SwitchLinear(128, 96, 6, bias=False)
        self.set_dtype(kind)
        if mode is not None:
            nn.quantize(self, group_size=group_size, bits=bits, mode=mode)
        mx.eval(self.parameters())


def checked(model: Model) -> kernels.Checked:
    return check(model, lambda: None, 60.0)


@pytest.mark.parametrize("kind", [mx.float32, mx.bfloat16, mx.float16])
def test_right_products_are_no_alarm(kind: Any) -> None:
    found = checked(Model(kind))
    # MLX on the CPU has experts in float32 only.
    assert (found.checked, found.shapes) == (3 if kind == mx.float32 else 2, 3), "two of the four matrices are of one kind"


@pytest.mark.parametrize(
    ("mode", "bits", "group_size"),
    [("affine", 4, 32), ("affine", 8, 64), ("affine", 3, 64), ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)],
)
def test_right_products_of_quantized_matrices_are_no_alarm(mode: str, bits: int, group_size: int) -> None:
    assert checked(Model(mode=mode, bits=bits, group_size=group_size)).checked == 3


def wrong_for(monkeypatch: pytest.MonkeyPatch, name: str, spoil: Any) -> None:
    right = getattr(mx, name)
    monkeypatch.setattr(mx, name, lambda *arguments, **options: spoil(right(*arguments, **options)))


def one_of_many(product: Any) -> Any:
    """A tile of the last rows is that of other rows, if there are many tokens."""
    if product.shape[0] < 32:
        return product
    return mx.concatenate([product[..., :-32], product[..., :32]], axis=-1)


def not_a_number(product: Any) -> Any:
    return product * float("nan")


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("quantized_matmul", one_of_many, "the product of 128 tokens with wide (320x8, 4 bits in groups of 32, affine): a"),
        ("gather_qmm", one_of_many, "the product of 128 tokens with experts (6x96x16, 4 bits in groups of 32, affine): a"),
        ("gather_qmm", not_a_number, "the product of 1 tokens with experts (6x96x16, "),
        ("quantized_matmul", lambda product: product * 1.1, "the product of 1 tokens with wide (320x8, "),
    ],
)  # fmt: skip
def test_a_kernel_that_is_wrong_for_some_shape_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, spoil: Any, words: str
) -> None:
    model = Model(mode="affine")
    wrong_for(monkeypatch, name, spoil)
    with pytest.raises(KernelWrong) as caught:
        checked(model)
    assert str(caught.value).startswith(words)


def test_experts_of_other_tokens_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(mx.float32)
    wrong_for(monkeypatch, "gather_mm", lambda product: product[::-1])
    with pytest.raises(KernelWrong, match=r"with experts \(6x96x128, float32\)"):
        checked(model)


def test_the_time_is_bounded_and_each_shape_is_progress() -> None:
    steps: list[None] = []
    found = check(Model(mx.float32), lambda: steps.append(None), 0.0)
    assert (found.checked, found.shapes, len(steps)) == (1, 3, 1)


def test_what_one_attempt_leaves_out_another_one_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def compared(matrix: Any, *_: Any) -> None:
        seen.append(matrix.path)

    monkeypatch.setattr(kernels, "_compare", compared)
    for first in range(3):
        check(Model(mx.float32), lambda: None, 0.0, first)
    assert len(set(seen)) == 3


def test_rows_that_are_wrong_between_those_of_one_attempt_are_found_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_row(product: Any) -> Any:
        return mx.concatenate([product[..., :1], product[..., 1:2] + 9, product[..., 2:]], axis=-1)

    wrong_for(monkeypatch, "quantized_matmul", one_row)
    assert check(Model(mode="affine"), lambda: None, 60.0).checked == 3
    with pytest.raises(KernelWrong):
        check(Model(mode="affine"), lambda: None, 60.0, 1)
