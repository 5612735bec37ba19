"""Capabilities of this image's MLX on this machine. The agent runs it in a child with a time limit: MLX may fail to load."""

import json
import sys
from importlib.metadata import version

BACKENDS = ("ring", "jaccl")


def capabilities() -> dict[str, object]:
    """``mlxVersion``, ``mlxLmVersion``, the ``backends`` that MLX supports, and its default ``device``: gpu or cpu."""
    import mlx.core as mx

    return {
        "mlxVersion": version("mlx"),
        "mlxLmVersion": version("mlx-lm"),
        "backends": [name for name in BACKENDS if mx.distributed.is_available(name)],
        "device": "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu",
    }


def main() -> int:
    """Prints the capabilities as JSON. Returns the exit code."""
    try:
        found = capabilities()
    except ImportError as error:
        print(f"cannot load MLX: {error}", file=sys.stderr)
        return 1
    json.dump(found, sys.stdout)
    print()
    return 0
