"""The ``size`` command: a model folder in, ``NodeProfile.status.models[]`` out."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thunderfleet_crds.kinds.nodeprofile import Model
from thunderfleet_lib import jsonbounds

from thunderfleet_runner.host import broken_models, preflight, weightfiles
from thunderfleet_runner.host.weightfiles import IncompleteModel, Tensor
from thunderfleet_runner.sizing import bounded, sizes
from thunderfleet_runner.sizing.arithmetic import Facts
from thunderfleet_runner.sizing.bounded import Limits

log = logging.getLogger(__name__)

CONFIG_BYTES = 16 * 1024 * 1024
CONFIG_VALUES = 200_000
CONFIG_DEPTH = 32


def size(folder: Path, world_sizes: Sequence[int], limits: Limits | None = None) -> Model:
    """The sizes of the model in ``folder``: for tensor parallelism over each of ``world_sizes``, for pipelines, and of caches.

    Within the time and memory of ``limits``. Raises IncompleteModel for incomplete files, ValueError when the configuration is
    invalid, OSError.
    """
    return size_and_parts(folder, world_sizes, limits)[0]


def size_and_parts(folder: Path, world_sizes: Sequence[int], limits: Limits | None = None) -> tuple[Model, str | None]:
    """The same, and why ranks of a pipeline cannot be loaded from parts of the files; None if they can."""
    tensors = weightfiles.read(folder)
    config = _config(folder)
    facts = bounded.run(folder, world_sizes, limits or Limits())
    found = _sized(folder, config, tensors, world_sizes, facts)
    broken = broken_models.why_broken(config, preflight.version("mlx-lm"))
    return found.model_copy(update={"unsupported": broken}), facts.no_parts


def _sized(folder: Path, config: dict[str, Any], tensors: Sequence[Tensor], world_sizes: Sequence[int], facts: Facts) -> Model:
    if facts.total_bytes is None:
        log.warning("%s: %s; using the sizes of its files instead", folder, facts.ended)
        return sizes.by_files(str(folder.absolute()), config, tensors, facts.ended or "mlx-lm printed nothing")
    if facts.ended:
        log.warning("%s: %s", folder, facts.ended)
    return sizes.by_mlx(str(folder.absolute()), config, facts, world_sizes, tensors)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    raw = weightfiles.read_regular(path, CONFIG_BYTES)
    try:
        # Configurations of some models have infinities.
        config = jsonbounds.loads(raw, values=CONFIG_VALUES, depth=CONFIG_DEPTH, constants=True)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object")
    return config


def main(path: Path, world_sizes: Sequence[int]) -> int:
    """Prints the sizes as JSON. Returns the exit code: 2 when the folder has no complete model."""
    try:
        found = size(path, world_sizes)
    except (IncompleteModel, ValueError, OSError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    json.dump(found.model_dump(mode="json", by_alias=True, exclude_none=True), sys.stdout)
    print()
    return 0
