"""Loads one rank of a pipeline from the weights of its own layers; the weights of other layers need not be on this Mac.

mlx-lm gets only tensors of the rank's layers and those outside of layers. After the split, every remaining parameter must come
from one of these tensors. Otherwise it would have been initialized with random values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from thunderfleet_runner.host import weightfiles
from thunderfleet_runner.rank import mlxlm

_SHOWN = 3


def load(folder: Path, layers: range, split: Callable[[Any], None]) -> tuple[Any, dict[str, Any]]:
    """The model of ``folder`` after ``split``, with no weight read, and its configuration.

    Raises IncompleteModel if a parameter of these layers has no weights in the folder, ValueError with mlx-lm's text, and what
    ``split`` raises.
    """
    given: dict[str, Any] = {}
    with _only(layers, given):
        model, config = mlxlm.load_lazily(folder, strict=False)
    known = {name for name, _ in tree_flatten(model.parameters())}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ValueError(f"the weight files have tensors {_names(unknown)}, which are not parameters of the model")
    split(model)
    sources = {id(array) for array in given.values()}
    missing = sorted(name for name, array in tree_flatten(model.parameters()) if id(array) not in sources)
    if missing:
        where = f"layers {layers.start} to {layers.stop - 1}"
        raise weightfiles.IncompleteModel(f"the files with {where} have no weights for {_names(missing)}")
    return model, config


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(weightfiles.shown, names[:_SHOWN])) + more


@contextmanager
def _only(layers: range, given: dict[str, Any]) -> Iterator[None]:
    """Within the context mlx-lm finds no weights of other layers. ``given``: gets the parameters that it sets, by name."""
    core: Any = mx
    load, set_weights = core.load, nn.Module.load_weights

    def own(name: str) -> bool:
        layer = weightfiles.layer_of(name)
        return layer is None or layer in layers

    def read(path: Any, *arguments: Any, **options: Any) -> Any:
        found = load(path, *arguments, **options)
        return {name: array for name, array in found.items() if own(name)} if isinstance(found, dict) else found

    def take(self: Any, weights: Any, strict: bool = True) -> Any:
        shapes = {name: array.shape for name, array in tree_flatten(self.parameters())}
        for name, array in weights:
            if name in shapes and shapes[name] != array.shape:
                raise ValueError(f"{name} has the shape {array.shape}, not {shapes[name]}")
        given.update(weights)
        return set_weights(self, weights, strict)

    try:
        core.load, nn.Module.load_weights = read, take
        yield
    finally:
        core.load, nn.Module.load_weights = load, set_weights
