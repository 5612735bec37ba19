"""``python -m thunderfleet_lib.host.mlx_memory`` prints how much memory of this Mac its GPU may use, as MLX reports it.

It is a program of its own because a GPU driver may hang or crash. Kubelet and agent run it when they start, so it imports
nothing but MLX.
"""

import sys

KEY = "max_recommended_working_set_size"


def main() -> int:
    """Prints the bytes, or 0 without a GPU. Returns the exit code."""
    try:
        import mlx.core as mx

        found = mx.device_info().get(KEY) or 0
    except (ImportError, RuntimeError, ValueError) as error:
        print(f"cannot query MLX: {error}", file=sys.stderr)
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
