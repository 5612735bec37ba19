"""``thunderfleet demo``: starts a fleet of recorded Macs and streams a completion from it.

Every step shows its commands and its duration. The first failure names the step, the reason and the logs, and ends the run.
"""

import signal
import time

from thunderfleet_localcluster.demo.session import Session, say
from thunderfleet_localcluster.demo.steps import play
from thunderfleet_localcluster.errors import LocalClusterError


def main(*, keep: bool) -> int:
    """Run the demo. Exit code 0: every step succeeded, 1: one failed, 130: interrupted. ``keep``: leave the cluster running."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    session = Session()
    began = time.monotonic()
    try:
        play(session, keep)
        if keep:
            session.cluster.detach()
    except LocalClusterError as error:
        say(f"\n{error}")
        session.down()
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; stopping the cluster")
        session.down()
        return 130
    say(f"\nThe demo took {time.monotonic() - began:.0f} s.")
    return 0
