"""``python -m thunderfleet_cli``: same as ``thunderfleet``."""

import sys

from thunderfleet_cli.cli import main

if __name__ == "__main__":
    sys.exit(main())
