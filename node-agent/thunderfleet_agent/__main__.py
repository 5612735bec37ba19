"""``python -m thunderfleet_agent``: the same as ``thunderfleet-agent``."""

import sys

from thunderfleet_agent.cli import main

sys.exit(main())
