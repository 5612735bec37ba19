"""Runs the shim by its folder's path (``python -I -S …/shim FOLDER``) or with ``-m``."""

import sys


def run() -> int:
    """Makes the package importable, which it is not when it runs by path in an isolated interpreter."""
    if not __package__:
        own = sys.path.pop(0)
        sys.path.append(own.rsplit("/", 2)[0])
    from thunderfleet_kubelet.shim.owner import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
