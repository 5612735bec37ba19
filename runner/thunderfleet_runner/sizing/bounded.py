"""Runs the dry run in a child process with limits of time and memory, because some models' traces are large.

The child prints its results after each step, one JSON object per line, so that a run that is cut short still gives most
of them.
Memory is bounded twice: by RLIMIT_AS where the system enforces it (Linux), and by the child's own watch on its resident size.
"""

import json
import logging
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thunderfleet_lib import collector

from thunderfleet_runner.sizing import arithmetic
from thunderfleet_runner.sizing.arithmetic import Cache, Facts, Workspace

log = logging.getLogger(__name__)

EXIT_UNKNOWN = 3
EXIT_MEMORY = 4
_LOOK_SECONDS = 0.05
_ADDRESS_SPACE = 4
"""Allowed address space as a multiple of the resident limit: libraries reserve far more than they use."""
_STDERR = 2000


@dataclass(frozen=True)
class Limits:
    """``seconds`` for the whole child; ``resident_bytes`` for its memory, of which Python and MLX use 0.1 GB."""

    seconds: float = 120.0
    resident_bytes: int = 3 * 2**30


def run(folder: Path, world_sizes: Sequence[int], limits: Limits) -> Facts:
    """Results of the dry run of the model in ``folder`` within ``limits``; ``ended`` is the reason if it stopped early.

    Never raises for what the child does.
    """
    command = [sys.executable, "-m", __name__, str(folder.absolute()), str(limits.resident_bytes)]
    command += [str(world_size) for world_size in world_sizes]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limits.seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired as late:
        return _last(late.stdout or b"", f"mlx-lm's dry run did not complete within {limits.seconds:g} s")
    if ended.returncode == 0:
        return _last(ended.stdout, None)
    said = ended.stderr.decode("utf-8", "replace")[-_STDERR:].strip().rsplit("\n", 1)[-1]
    match ended.returncode:
        case _ if ended.returncode == EXIT_UNKNOWN:
            why = said
        case _ if ended.returncode == EXIT_MEMORY:
            why = f"mlx-lm's dry run needed more than {limits.resident_bytes / 2**30:.1f} GiB"
        case code:
            why = f"mlx-lm's dry run ended with {'signal' if code < 0 else 'exit code'} {abs(code)}: {said}"
    return _last(ended.stdout, arithmetic.text(why))


def _last(output: bytes, ended: str | None) -> Facts:
    """The results in the last complete line of the child's output."""
    for line in reversed(output.splitlines()):
        try:
            found = from_json(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue
        found.ended = ended
        return found
    return Facts(ended=ended or "mlx-lm's dry run printed nothing")


def to_json(found: Facts) -> dict[str, Any]:
    """Facts as plain JSON."""
    return {
        **{name: value for name, value in vars(found).items() if name not in ("kv", "workspace", "tensor")},
        "tensor": {str(world_size): answer for world_size, answer in found.tensor.items()},
        "kv": None if found.kv is None else [asdict(layer) for layer in found.kv],
        "workspace": None if found.workspace is None else asdict(found.workspace),
    }


def from_json(value: dict[str, Any]) -> Facts:
    """Facts from plain JSON. Raises KeyError, TypeError or ValueError for anything else."""
    answers = {int(size): answer if isinstance(answer, str) else tuple(answer) for size, answer in value["tensor"].items()}
    return Facts(
        **{
            **value,
            "layer_bytes": tuple(value["layer_bytes"]),
            "tensor": answers,
            "kv": None if value["kv"] is None else tuple(Cache(**layer) for layer in value["kv"]),
            "workspace": None if value["workspace"] is None else Workspace(**value["workspace"]),
        }
    )


# --- the child ------------------------------------------------------------------------------------------------------


def resident_peak() -> int:
    """Peak resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def watch_memory(limit: int) -> None:
    """Ends this process as soon as its resident size exceeds ``limit`` bytes."""

    def look() -> None:
        while resident_peak() <= limit:
            stop.wait(_LOOK_SECONDS)
        os._exit(EXIT_MEMORY)

    stop = threading.Event()
    threading.Thread(target=look, daemon=True, name="memory-watch").start()


def child(arguments: Sequence[str]) -> int:
    """``FOLDER BYTES WORLD-SIZE...``: prints results as they become known. Exit code 3: mlx-lm cannot build the model."""
    folder, limit, world_sizes = Path(arguments[0]), int(arguments[1]), tuple(map(int, arguments[2:]))
    logging.basicConfig(stream=sys.stderr, level="WARNING")
    if sys.platform != "darwin":
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE * limit,) * 2)
    # Keeps mlx-lm's own output out of the results.
    answer, sys.stdout = sys.stdout, sys.stderr
    watch_memory(limit)

    def report(found: Facts) -> None:
        answer.write(json.dumps(to_json(found)) + "\n")
        answer.flush()

    try:
        with collector.paused():
            from thunderfleet_runner.sizing import dryrun

        dryrun.facts(folder, world_sizes, report)
    except MemoryError:
        return EXIT_MEMORY
    except Exception as error:
        # An unknown architecture can raise anything; the model is then sized by its files.
        print(arithmetic.text(f"mlx-lm cannot build this model: {type(error).__name__}: {error}"), file=sys.stderr)
        return EXIT_UNKNOWN
    return 0


if __name__ == "__main__":
    sys.exit(child(sys.argv[1:]))
