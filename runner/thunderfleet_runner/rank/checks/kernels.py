"""Checks products with the matrices of a rank's part of the model, in every attempt, when the model is loaded.

A kernel that is wrong for a shape, a type or a chip gives no error. So this module computes, for each distinct shape, the
product that the model would compute, for one token and for many. It compares samples of the result with a computation on the
CPU in float32 from the dequantized weights. Each rank does this alone. Since the reference uses the dequantized weights, this
checks the kernels and not the loss of quantization.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

log = logging.getLogger(__name__)

LIMIT_SECONDS = 0.5
"""No further shape is checked after this time."""
TOKENS = (1, 128)
"""Tokens of a step: of an answer, and of a part of a prompt. Kernels differ by it."""
EXPERTS = 4
"""Experts of each token, where the matrix is one of many."""
SAMPLED_TOKENS = 8
SAMPLED_ROWS = 16
RANDOM, SYSTEMATIC = 2.0**-5, 2.0**-7
"""Allowed differences. bfloat16 rounds each value by up to 2^-9 of it: by RANDOM of the root of the sum of the squares of all
products where roundings cancel each other, and by SYSTEMATIC of the result where they do not."""
_KEY = 20_241
_LINEAR = ("Linear", "QuantizedLinear", "ShardedLinear", "ToAllLinear")
_SWITCH = "SwitchLinear"


class KernelWrong(RuntimeError):
    """This Mac computes a product wrong."""


@dataclass(frozen=True)
class Checked:
    """``checked`` of the ``shapes`` of matrices were right."""

    checked: int
    shapes: int
    seconds: float


@dataclass(frozen=True)
class _Matrix:
    path: str
    module: Any
    many: bool
    """Whether there is one for each expert."""

    def has(self, name: str) -> Any:
        return self.module.get(name)

    @property
    def quantization(self) -> dict[str, Any]:
        """The arguments of mlx's functions for it; empty if it is not quantized."""
        if self.has("scales") is None:
            return {}
        return {name: getattr(self.module, name) for name in ("group_size", "bits")} | {
            "mode": getattr(self.module, "mode", "affine")
        }

    @property
    def inputs(self) -> int:
        """Number of input values of a token."""
        weight, scales = self.module["weight"], self.has("scales")
        return int(weight.shape[-1] if scales is None else scales.shape[-1] * self.module.group_size)

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for matrices for which the same kernels run."""
        weight, scales = self.module["weight"], self.has("scales")
        return (
            self.many, weight.shape, weight.dtype, None if scales is None else scales.dtype, *self.quantization.values()
        )  # fmt: skip


def _matrices(model: Any) -> Iterator[_Matrix]:
    for path, module in model.named_modules():
        name = type(module).__name__
        weight = module.get("weight")
        # A scale of the whole tensor is left out: it is a factor after the kernel.
        if weight is None or getattr(module, "global_scale", None) is not None:
            continue
        if name.endswith(_SWITCH) and weight.ndim == 3:
            yield _Matrix(path, module, True)
        elif name.endswith(_LINEAR) and weight.ndim == 2:
            yield _Matrix(path, module, False)


def check(model: Any, step: Callable[[], None], limit: float = LIMIT_SECONDS, first: int = 0) -> Checked:
    """Checks one matrix of each kind until the time is over. Raises KernelWrong.

    ``step`` is called after each. ``first``: a number that chooses the first kind and the rows. With another number in each
    attempt, later attempts check what earlier ones left out.
    """
    began = time.monotonic()
    distinct: dict[tuple[object, ...], _Matrix] = {}
    for matrix in _matrices(model):
        distinct.setdefault(matrix.kind, matrix)
    done, kind = 0, _activations(model)
    matrices = list(distinct.values())
    begin = first % max(1, len(matrices))
    for matrix in matrices[begin:] + matrices[:begin]:
        if done and time.monotonic() - began > limit:
            break
        try:
            for tokens in TOKENS:
                _compare(matrix, tokens, kind, first)
            done += 1
        except KernelWrong:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            # A product that cannot be computed fails anyway when the model needs it.
            log.warning("the product with %s is not checked: %s", matrix.path, error)
        step()
    mx.clear_cache()
    return Checked(done, len(distinct), time.monotonic() - began)


def _activations(model: Any) -> Any:
    """The type of what goes through the layers."""
    for _, module in model.named_modules():
        for name in ("scales", "weight"):
            found = module.get(name)
            if found is not None and mx.issubdtype(found.dtype, mx.floating):
                return found.dtype
    return mx.bfloat16


def _compare(matrix: _Matrix, tokens: int, kind: Any, first: int) -> None:
    """Raises KernelWrong if the product for this many tokens is wrong."""
    values = mx.random.normal((tokens, matrix.inputs), key=mx.random.key(_KEY)).astype(kind)
    experts = matrix.module["weight"].shape[0] if matrix.many else 1
    each = min(EXPERTS, experts)
    chosen = (mx.arange(tokens * each) * 7 % experts).reshape(tokens, each).astype(mx.uint32)
    product = _gathered(matrix, values, chosen) if matrix.many else _product(matrix, values)[:, None]
    mx.eval(product, values)
    sampled = _spread(tokens, SAMPLED_TOKENS)
    rows = (_spread(product.shape[-1], SAMPLED_ROWS) + first) % product.shape[-1]
    with mx.stream(mx.cpu):
        found = product[sampled][..., rows].astype(mx.float32)
        weights = _rows(matrix, chosen[sampled], rows)
        each_product = values[sampled].astype(mx.float32)[:, None, None, :] * weights
        right = each_product.sum(axis=-1)
        allowed = _random(matrix.inputs) * mx.sqrt(mx.square(each_product).sum(axis=-1)) + SYSTEMATIC * mx.abs(right)
        # Written so that a value that is not a number counts as wrong.
        wrong = mx.logical_not(mx.abs(found - right) <= allowed)
        mx.eval(wrong, found, right)
        if not mx.any(wrong).item():
            return
        place: Any = mx.argmax(wrong).item()
        is_, expected = found.reshape(-1)[place].item(), right.reshape(-1)[place].item()
    shape = "x".join(str(size) for size in matrix.module["weight"].shape)
    raise KernelWrong(
        f"the product of {tokens} tokens with {matrix.path} ({shape}, {_named(matrix)}): a value is {is_:g} instead of "
        f"{expected:g}, which the CPU computes"
    )


def _random(inputs: int) -> float:
    """The allowed random difference. MLX adds up in the type of the values on the CPU, and in float32 on the GPU."""
    return RANDOM * max(1.0, math.sqrt(inputs) / 4) if mx.default_device() == mx.cpu else RANDOM


def _named(matrix: _Matrix) -> str:
    quantization = matrix.quantization
    if not quantization:
        return str(matrix.module["weight"].dtype).rpartition(".")[2]
    return f"{quantization['bits']} bits in groups of {quantization['group_size']}, {quantization['mode']}"


def _spread(size: int, count: int) -> Any:
    """At most ``count`` places, from the first to the last one."""
    count = min(size, count)
    return mx.array([number * (size - 1) // max(1, count - 1) for number in range(count)], mx.uint32)


def _product(matrix: _Matrix, values: Any) -> Any:
    if not matrix.quantization:
        return values @ matrix.module["weight"].T
    return mx.quantized_matmul(
        values, matrix.module["weight"], matrix.module["scales"], matrix.has("biases"), transpose=True, **matrix.quantization
    )


def _gathered(matrix: _Matrix, values: Any, chosen: Any) -> Any:
    """Each token times the matrices of its experts, as mlx-lm does it: sorted by expert, if there are many."""
    tokens, each = chosen.shape
    indices = chosen.flatten()
    order = mx.argsort(indices)
    rows = values[order // each][:, None]
    arguments = {"rhs_indices": indices[order], "sorted_indices": tokens > 1}
    weight = matrix.module["weight"]
    if matrix.quantization:
        found = mx.gather_qmm(
            rows, weight, matrix.module["scales"], matrix.has("biases"), transpose=True, **arguments, **matrix.quantization
        )
    else:
        found = mx.gather_mm(rows, weight.swapaxes(-1, -2), **arguments)
    return found[:, 0][mx.argsort(order)].reshape(tokens, each, -1)


def _rows(matrix: _Matrix, chosen: Any, rows: Any) -> Any:
    """Rows of the matrix of each token's experts, in float32: (tokens, experts, rows, inputs)."""

    def taken(name: str) -> Any:
        array = matrix.has(name)
        if array is None:
            return None
        return array[chosen[..., None], rows] if matrix.many else array[rows]

    weight = taken("weight")
    if matrix.quantization:
        weight = mx.dequantize(weight, taken("scales"), taken("biases"), **matrix.quantization)
    weight = weight.astype(mx.float32)
    return weight if matrix.many else weight[None, None]
