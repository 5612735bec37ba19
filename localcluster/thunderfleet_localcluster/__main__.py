"""``python -m thunderfleet_localcluster``: the same as the ``thunderfleet`` command."""

import sys

from thunderfleet_localcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
