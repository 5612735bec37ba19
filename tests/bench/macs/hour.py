"""``python -m tests.bench.macs.hour FOLDER``: one agent's rounds of an hour, without the pauses between them.

It runs as a separate process, so that the kernel counts only its own processor time and that of its commands. Prints JSON:
seconds of processor time of the agent (``own``) and of its commands (``children``), resident bytes after the first minute's
rounds and at the end, and the number of rounds. FOLDER holds a recorded Mac's commands.
"""

import asyncio
import json
import os
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_agent.derive.flap_damper import FlapDamper
from thunderfleet_agent.derive.profile import profile
from thunderfleet_agent.observe.collector import Collector
from thunderfleet_agent.rounds import AgentSettings
from thunderfleet_lib.host.hostcmd import Host

HOUR_SECONDS = 3600


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _rounds() -> dict[str, float]:
    settings = AgentSettings("mac", "127.0.0.1", 0, 0)
    fast, slow = round(HOUR_SECONDS / settings.fast_seconds), round(HOUR_SECONDS / settings.slow_seconds)
    collector, damper, resident = Collector(Host()), FlapDamper(), 0
    for number in range(fast):
        if number % (fast // slow) == 0:
            await collector.slow()
        await collector.fast()
        damper.see(collector.facts, time.monotonic())
        profile(damper.held(collector.facts), datetime.now(UTC))
        if number == round(60 / settings.fast_seconds):
            resident = _resident()
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "fast": fast,
        "slow": slow,
        "own": own.ru_utime + own.ru_stime,
        "children": children.ru_utime + children.ru_stime,
        "residentBefore": resident,
        "residentAfter": _resident(),
    }


def main() -> None:
    os.environ["PATH"] = f"{sys.argv[1]}:{os.environ['PATH']}"
    print(json.dumps(asyncio.run(_rounds())))


if __name__ == "__main__":
    main()
