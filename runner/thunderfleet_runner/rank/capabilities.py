"""What the MLX in this image can do on this machine. The agent asks in a child with a time limit: MLX may not even load."""

import json
import sys
from importlib.metadata import version

BACKENDS = ("ring", "jaccl")


def capabilities() -> dict[str, object]:
    """``mlxVersion``, ``mlxLmVersion``, the ``backends`` that MLX says it can run, and its default ``device``: gpu or cpu."""
    import mlx.core as mx

    return {
        "mlxVersion": version("mlx"),
        "mlxLmVersion": version("mlx-lm"),
        "backends": [name for name in BACKENDS if mx.distributed.is_available(name)],
        "device": "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu",
    }


def main() -> int:
    """Prints it as JSON. Returns the exit code."""
    try:
        found = capabilities()
    except ImportError as error:
        print(f"MLX cannot be loaded: {error}", file=sys.stderr)
        return 1
    json.dump(found, sys.stdout)
    print()
    return 0
