"""Infrequent work that needs large libraries. A short-lived process does it, so that they do not stay in memory."""

import contextlib
import importlib
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure

log = logging.getLogger(__name__)

# A starved machine may take long; without a limit, a kubelet would wait for a stuck disk for ever.
SECONDS = 120.0
_HOST = BlockingHost(environment={})
_HERE: set[str] = set()
"""Modules that need no process of their own at the moment."""


def done(module: str, order: dict[str, Any]) -> dict[str, Any]:
    """The result of the module's ``answer(order)``; both are JSON values. Blocks.

    The module runs as a program that reads the order and writes the answer, unless it is ``here``. On a machine that can start
    no process, it runs in this process: a kubelet that starts there still has to manage the running pods.
    """
    if module in _HERE:
        return _answered(module, order)
    argv = [sys.executable, "-I", "-X", "utf8", "-m", module]
    outcome = _HOST.run(argv, SECONDS, given=json.dumps(order).encode())
    if isinstance(outcome, Failure):
        log.warning("the process of %s %s; working without it", module, outcome.message)
        return _answered(module, order)
    answer: dict[str, Any] = json.loads(outcome.text)
    return answer


@contextlib.contextmanager
def here(module: str) -> Iterator[None]:
    """In this block the module runs in this process, which ends soon and has imported the libraries anyway."""
    _HERE.add(module)
    try:
        yield
    finally:
        _HERE.discard(module)


def _answered(module: str, order: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = importlib.import_module(module).answer(order)
    return answer
