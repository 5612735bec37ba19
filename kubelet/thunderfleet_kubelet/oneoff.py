"""Work that needs large libraries and is rare: a process of its own does it and ends, so that they do not stay in memory."""

import importlib
import json
import logging
import sys
from typing import Any

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure

log = logging.getLogger(__name__)

# A starved machine may take long; without a limit, a kubelet would wait for a stuck disk for ever.
SECONDS = 120.0
_HOST = BlockingHost(environment={})


def done(module: str, order: dict[str, Any]) -> dict[str, Any]:
    """What ``answer(order)`` of the module returns; both are JSON values. Blocks.

    The module runs as a program that reads the order and writes the answer. On a machine that can start no process, it runs in
    this one: a kubelet that starts there still has to look after the pods that run.
    """
    argv = [sys.executable, "-I", "-X", "utf8", "-m", module]
    outcome = _HOST.run(argv, SECONDS, given=json.dumps(order).encode())
    answer: dict[str, Any]
    if isinstance(outcome, Failure):
        log.warning("the process of %s %s; working without it", module, outcome.message)
        answer = importlib.import_module(module).answer(order)
    else:
        answer = json.loads(outcome.text)
    return answer
