"""``python -m thunderfleet_localcluster.supervisor``: started by ``thunderfleet local up``, not by people."""

import sys

from thunderfleet_localcluster.supervisor.process import main

if __name__ == "__main__":
    sys.exit(main())
