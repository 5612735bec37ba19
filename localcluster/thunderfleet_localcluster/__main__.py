"""``python -m thunderfleet_localcluster``: same as ``thunderfleet``."""

import sys

from thunderfleet_localcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
