"""Infrequent work that needs large libraries. A short-lived process does it, so that they do not stay in memory."""

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
    """The result of the module's ``answer(order)``; both are JSON values. Blocks.

    The module runs as a program that reads the order and writes the answer. On a machine that can start no process, it runs in
    this process: a kubelet that starts there still has to manage the running pods.
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
