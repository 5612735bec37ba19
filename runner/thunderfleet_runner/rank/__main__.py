"""``python -m thunderfleet_runner.rank``: one rank process; what its group does not need to form is imported after that."""

import sys

from thunderfleet_runner.rank.start import start


def main() -> int:
    """Returns 0 when the process was stopped before its attempt; otherwise exits by itself."""
    started = start()
    if started is None:
        return 0
    from thunderfleet_lib import collector

    with collector.paused():
        from thunderfleet_runner.rank import rank

    rank.run(started)


if __name__ == "__main__":
    sys.exit(main())
