"""Whether the scheduler and the controller manager of a control plane on this machine answer.

With a single control plane they renew no Lease, so no other machine can see whether they work. Both report it on loopback;
the request contains no secret, so the certificate is not verified.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
from thunderfleet_lib.net import redirects

log = logging.getLogger(__name__)

PORTS: Final[Mapping[str, int]] = {"kube-controller-manager": 10257, "kube-scheduler": 10259}
ASK_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
FAILURES: Final = 3
"""Consecutive requests without an answer after which a component counts as failed: launchd restarts one within seconds."""


class ComponentWatch:
    """Checks the components of this machine. ``changed`` is called when one of them starts or stops working."""

    def __init__(self, changed: Callable[[], None], ports: Mapping[str, int] = PORTS) -> None:
        self._changed, self._ports = changed, ports
        self._failures = dict.fromkeys(ports, 0)
        self._works: dict[str, bool] = {}

    def works(self) -> Mapping[str, bool]:
        """Whether each component works, by name; those that are not known yet are left out."""
        return dict(self._works)

    async def run(self) -> None:
        """Checks until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        # Each request uses a new connection, because a hanging connection must not be reused.
        connector, traces = aiohttp.TCPConnector(force_close=True), [redirects.refused()]
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, trace_configs=traces) as client:
            while True:
                await self.ask(client)
                await asyncio.sleep(ASK_SECONDS)

    async def ask(self, client: aiohttp.ClientSession) -> None:
        """Checks once."""
        answers = await asyncio.gather(*(_answers(client, port) for port in self._ports.values()))
        before = dict(self._works)
        for name, answered in zip(self._ports, answers, strict=True):
            self._failures[name] = 0 if answered else self._failures[name] + 1
            if answered or self._failures[name] >= FAILURES:
                self._works[name] = answered
        if self._works != before:
            for name, works in self._works.items():
                if before.get(name, True) is not works:
                    log.warning("%s of this machine %s", name, "answers again" if works else "does not answer")
            self._changed()


async def _answers(client: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with client.get(f"https://127.0.0.1:{port}/healthz", ssl=False) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
