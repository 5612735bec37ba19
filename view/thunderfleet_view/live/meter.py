"""Live rates of cables: reads the counters of agents while a page is open. Writes nothing to the API server.

Agents are read through the API server (``pods/proxy``), with the rights of the user who runs the page. Without that right
there are no rates, and the page shows the reason.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from thunderfleet_crds import names
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_view import facts
from thunderfleet_view.live import rates
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.fleet import Fleet

log = logging.getLogger(__name__)

AGENTS: Final = {"labelSelector": f"{names.LABEL_NAME}={facts.CHART},{facts.LABEL_COMPONENT}=agent"}
METRICS_PORT: Final = "metrics"
ROUND_SECONDS: Final = 5.0
"""Agents read their counters every 10 seconds."""
PER_SECOND: Final = 20
"""Maximum agents that are read per second; in a large fleet, a round takes longer."""
AT_ONCE: Final = 8
ANSWER_SECONDS: Final = 5.0
ANSWER_BYTES: Final = 1 << 20
PODS_SECONDS: Final = 60.0
"""The agents' pods are listed this often, and after a failure."""
REFUSED_SECONDS: Final = 60.0
"""How long to wait after the API server has refused."""


class Meter:
    """The rates of the cables of ``fleet``, for the browsers of ``feed``."""

    def __init__(self, kube: Kube, fleet: Fleet, feed: Feed) -> None:
        self._kube = kube
        self._fleet = fleet
        self._feed = feed
        self._readings: dict[str, rates.Reading] = {}
        self._rates: dict[str, dict[str, tuple[int, int]]] = {}
        """By reporting Mac and cable: bits per second that the Mac received and sent."""
        self._agents: Mapping[str, str] = {}
        """Path of the metrics of each Mac's agent."""
        self._listed: float | None = None
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            pause = ROUND_SECONDS
            if self._feed.readers:
                try:
                    pause = max(pause, await self.round() / PER_SECOND)
                except ApiError as error:
                    self._forget()
                    self._feed.meter({}, _refused(error))
                    pause = REFUSED_SECONDS if error.status in (401, 403) else ROUND_SECONDS
            elif self._readings:
                self._forget()
            await asyncio.sleep(pause)

    async def round(self) -> int:
        """Reads as many agents as needed, and returns their number. Raises ApiError if that is not allowed."""
        ends = self._ends()
        chosen = rates.enough(ends.values())
        agents = await self._known() if chosen else {}
        asked = sorted(chosen & agents.keys())
        found = await asyncio.gather(*(self._ask(mac, agents[mac]) for mac in asked))
        for mac in self._rates.keys() - set(asked):
            del self._rates[mac]
        refusals = [one for one in found if one is not None and one.status in (401, 403)]
        # If all are refused, the API server refuses them; a single refusal may come from a pod.
        if refusals and len(refusals) == len(found):
            raise refusals[0]
        if any(found):
            # An agent's pod may have been replaced.
            self._listed = None
        self._feed.meter(self._directed(ends), "" if agents or not chosen else "no pod of an agent was found")
        return len(asked)

    def _ends(self) -> dict[str, tuple[str, str]]:
        """The Macs of each connected cable."""
        cables = (one for one in self._fleet.entities.values() if "ends" in one and one["connected"])
        return {str(one["name"]): (one["ends"][0][0], one["ends"][1][0]) for one in cables}

    async def _known(self) -> Mapping[str, str]:
        now = asyncio.get_running_loop().time()
        if self._listed is None or now - self._listed > PODS_SECONDS:
            pods = (await self._kube.list("/api/v1/pods", **AGENTS))[0]
            self._agents = {mac: path for pod in pods for mac, path in _agent(pod)}
            self._listed = now
        return self._agents

    async def _ask(self, mac: str, path: str) -> ApiError | None:
        """Reads an agent. Returns why it did not answer; its last counters then expire."""
        lines: list[str] = []
        try:
            async with self._at_once, asyncio.timeout(ANSWER_SECONDS):
                await self._read(path, lines)
        except TimeoutError:
            return self._missed(mac, ApiError(0, "Timeout", f"{path}: no answer in time"))
        except ApiError as error:
            return self._missed(mac, error)
        new, old = rates.parse(lines), self._readings.get(mac)
        if new is None:
            self._readings.pop(mac, None)
            self._rates.pop(mac, None)
        elif old is None or new.at != old.at:
            self._readings[mac] = new
            self._rates[mac] = rates.rates(old, new) if old is not None else {}
        return None

    async def _read(self, path: str, lines: list[str]) -> None:
        size = 0
        async for line in self._kube.lines(path, {}):
            size += len(line)
            if size > ANSWER_BYTES:
                raise ApiError(0, "TooLarge", f"{path}: more than {ANSWER_BYTES} bytes")
            if rates.wanted(line):
                lines.append(line)

    def _missed(self, mac: str, error: ApiError) -> ApiError:
        log.debug("%s: %s", mac, error)
        self._readings.pop(mac, None)
        self._rates.pop(mac, None)
        return error

    def _directed(self, ends: Mapping[str, tuple[str, str]]) -> dict[str, list[int]]:
        """For each cable with traffic: bits per second from its first end to the second, and back."""
        found = {}
        for mac, by_cable in self._rates.items():
            for name, (received, sent) in by_cable.items():
                if mac in ends.get(name, ()) and (received or sent):
                    found[name] = [sent, received] if mac == ends[name][0] else [received, sent]
        return found

    def _forget(self) -> None:
        self._readings, self._rates, self._listed = {}, {}, None


def _agent(pod: Json) -> list[tuple[str, str]]:
    """The Mac of an agent's pod, and the path of its metrics."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    ports = [port for one in spec.get("containers") or () for port in one.get("ports") or ()]
    port = next((port.get("containerPort") for port in ports if port.get("name") == METRICS_PORT), None)
    if not spec.get("nodeName") or not isinstance(port, int) or pod["metadata"].get("deletionTimestamp"):
        return []
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    return [(str(spec["nodeName"]), f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics")]


def _refused(error: ApiError) -> str:
    if error.status in (401, 403):
        return (
            "you are not allowed to read the agents' metrics: check with `kubectl auth can-i get pods --subresource=proxy -A`"
        )
    return f"the agents' metrics cannot be read: {error}"
