"""What mlx-lm does when a repository is quantized, in a child process: ``plan`` computes the size, ``convert`` writes files.

A child process is used because an unknown architecture can raise any exception, and because MLX frees all memory only when a
process ends. ``plan`` prints JSON: ``{"bytes": …}`` or ``{"refused": …}``. It reads only the headers of files with weights.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thunderfleet_crds.weights.quantization import Quantize

PLAN_SECONDS = 300.0
PLAN_MEMORY_BYTES = 3 * 2**30
CONVERT_SECONDS = 12 * 3600.0
TEXT = 600


class Refused(Exception):
    """Why mlx-lm cannot quantize the model, in its own words."""


def planned_bytes(folder: Path, quantize: Quantize) -> int:
    """Bytes of the weights of the model in ``folder`` when they are quantized. Raises Refused."""
    found = _child("plan", folder, None, quantize, PLAN_SECONDS)
    return int(found["bytes"])


def convert(folder: Path, target: Path, quantize: Quantize) -> None:
    """Writes the quantized model of ``folder`` into ``target``, which does not exist. Raises Refused."""
    _child("convert", folder, target, quantize, CONVERT_SECONDS)


def _child(what: str, folder: Path, target: Path | None, quantize: Quantize, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, what, str(folder), str(target or ""), str(quantize.bits)]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    try:
        ended = subprocess.run(
            [*command, str(quantize.group_size)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"mlx-lm did not finish within {seconds:.0f} s") from None
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = ended.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][-TEXT:]
        code = ended.returncode
        raise OSError(f"mlx-lm ended with {'signal' if code < 0 else 'exit code'} {abs(code)}: {last}") from None
    if found.get("errno"):
        raise OSError(int(found["errno"]), str(found["refused"]))
    if "refused" in found:
        raise Refused(str(found["refused"])[:TEXT])
    return dict(found)


# --- the child -----------------------------------------------------------------------------------------------------------


def _plan(folder: Path, quantize: Quantize) -> int:
    from mlx.utils import tree_flatten
    from mlx_lm import utils

    model, config = utils.load_model(folder, lazy=True)
    if "quantization" in config:
        raise ValueError("its weights are quantized already")
    quantized, _ = utils.quantize_model(model, config, quantize.group_size, quantize.bits)
    changed = [name for name, _ in tree_flatten(quantized.parameters()) if name.endswith(".scales")]
    if not changed:
        raise ValueError(f"no layer has a size that is a multiple of groupSize {quantize.group_size}")
    return sum(value.nbytes for _, value in tree_flatten(quantized.parameters()))


def _convert(folder: Path, target: Path, quantize: Quantize) -> None:
    from mlx_lm.convert import convert as mlx_convert

    mlx_convert(str(folder), str(target), quantize=True, q_group_size=quantize.group_size, q_bits=quantize.bits)


def main(words: Sequence[str]) -> int:
    """``plan|convert FOLDER TARGET BITS GROUP-SIZE``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("plan", "convert"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("bits", type=int)
    parser.add_argument("group_size", type=int)
    arguments = parser.parse_args(words)
    quantize = Quantize(bits=arguments.bits, group_size=arguments.group_size)
    # Keeps the output of mlx-lm apart from the result.
    answer, sys.stdout = sys.stdout, sys.stderr
    found: dict[str, Any] = {}
    try:
        if arguments.what == "plan":
            from thunderfleet_runner.sizing.bounded import watch_memory

            watch_memory(PLAN_MEMORY_BYTES)
            found["bytes"] = _plan(arguments.folder, quantize)
        else:
            _convert(arguments.folder, arguments.target, quantize)
    except Exception as error:
        found["refused"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:TEXT]
        found["errno"] = error.errno if isinstance(error, OSError) else None
    answer.write(json.dumps(found) + "\n")
    answer.flush()
    return 0 if "refused" not in found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
