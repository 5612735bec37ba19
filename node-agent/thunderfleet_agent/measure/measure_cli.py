"""``thunderfleet-agent measure``: one probe now, with a progress line, for somebody at a terminal.

GPU and memory need nothing but this Mac. A link needs what the running agent has: its certificate (by which the peer knows this
Mac), the API server, and free ends; so it is run where the agent runs, for instance by ``kubectl exec`` in its pod.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_agent.measure.prober import Ended, Prober
from thunderfleet_agent.measure.schedule.probes import Kind, Probe
from thunderfleet_agent.measure.schedule.results import Figures, Ledger
from thunderfleet_agent.measure.schedule.settings import Settings
from thunderfleet_agent.measure.schedule.view import View, notes, view, wanted
from thunderfleet_agent.measure.session import sessions, talk
from thunderfleet_agent.measure.session.probe_lock import Busy
from thunderfleet_agent.measure.worker import process
from thunderfleet_agent.peers import identity, reach
from thunderfleet_agent.publish.publisher import Publisher

QUIET_SECONDS = 2.0
TICK_SECONDS = 0.5
# A busy peer is asked again for so long, if it may be free so soon.
PATIENCE_SECONDS = 60.0
SOON_SECONDS = 5.0


class CannotMeasure(Exception):
    """Why there is nothing to print."""


@dataclass(frozen=True)
class Own:
    """What a link needs: who this Mac is, and where the agent keeps its certificate."""

    node: str | None
    host_ip: str | None
    state: Path | None
    kubeconfig: Path | None


@dataclass(frozen=True)
class Lender:
    """This Mac's own agent: it keeps the Mac out of other probes while one is run by hand, or says that it is in one."""

    node: str
    at: reach.Target
    context: ssl.SSLContext

    async def measure(self, prober: Prober, probe: Probe) -> Figures:
        """One probe, under the agent's lease. Raises what ``Prober.once`` does."""
        async with talk.call(self.at, self.node, self.context, self.at.address) as (line, _, _):
            return await sessions.borrow(line, probe, lambda: prober.once(probe))


class Progress:
    """One line that is written over; elsewhere than on a terminal, a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._live = out, out.isatty()
        self._begun, self._quiet_until, self._text = time.monotonic(), 0.0, ""

    def say(self, text: str) -> None:
        now, self._text = time.monotonic(), text
        if not self._live and now < self._quiet_until:
            return
        self._quiet_until = now + QUIET_SECONDS
        line = f"{time.monotonic() - self._begun:5.1f} s  {text}"
        self._out.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        self._out.flush()

    async def say_on(self) -> None:
        """The same again until cancelled, with the seconds that run on."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.say(self._text)

    def end(self) -> None:
        if self._live:
            self._out.write("\r\x1b[K")


async def device(what: Kind, settings: Settings, progress: Progress) -> Figures:
    """GPU or memory. Raises CannotMeasure."""
    chosen, unit = (settings.gpu, "GFLOPS") if what is Kind.GPU else (settings.memory, "MB/s")
    best = 0.0

    async def heard(message: dict[str, Any]) -> None:
        nonlocal best
        best = max(best, float(message.get("progress") or 0))
        state = "measuring" if message.get("steady") else "warming up"
        progress.say(f"{what}: {best:.4g} {unit} ({state})")

    progress.say(f"{what}: starting MLX")
    try:
        found = await process.run({"what": what.value, "seconds": chosen.seconds}, heard)
    except process.ChildFailed as error:
        raise CannotMeasure(f"{what}: {error}") from None
    finally:
        progress.end()
    return Figures.model_validate(found)


async def link(peer: str, own: Own, settings: Settings, progress: Progress) -> list[tuple[str, Figures | str]]:
    """Every cable and address to ``peer``: what was measured, or why not. Raises CannotMeasure."""
    context = _identity(own)
    assert own.node is not None and own.host_ip is not None
    if peer == own.node:
        raise CannotMeasure(f"{peer} is this Mac; a link leads to another one: `kubectl get np` lists them")
    try:
        kube = await Kube.connect(own.kubeconfig)
    except Exception as error:
        raise CannotMeasure(f"a link needs the API server (--kubeconfig, or in the agent's pod): {error}") from None
    async with kube:
        progress.say(f"reading the profiles of {own.node} and {peer}")
        try:
            found, mine = await _view(kube, own, peer, settings)
        except ApiError as error:
            raise CannotMeasure(f"a link needs the API server: {error}") from None
    agent = mine.status.agent
    if agent is None:
        raise CannotMeasure(f"the agent of {own.node} does not run: its NodeProfile shows none")
    prober = Prober(own.node, settings, context, Ledger(own.node), by_hand=True)
    prober.look(found)
    prober.use(mine.status.groups)
    lender = Lender(own.node, reach.Target(own.node, agent.address, agent.port, agent.certificate_sha256, None), context)
    probes = [probe for probe in wanted(found, settings) if probe.target.node == peer]
    if not probes:
        raise CannotMeasure(
            f"no address of {peer} that {own.node} has reached: `kubectl get np {own.node} -o yaml`, reachability"
        )
    answers: list[tuple[str, Figures | str]] = []
    for probe in probes:
        progress.say(f"{probe.key} (at most {probe.seconds:.0f} s)")
        saying = asyncio.create_task(progress.say_on())
        try:
            answers.append((str(probe.key), await _patiently(prober, lender, probe, progress)))
        except (Busy, Ended, talk.Refused, talk.Broken, process.ChildFailed, OSError) as error:
            answers.append((str(probe.key), f"not measured: {error}"))
        finally:
            saying.cancel()
            await asyncio.gather(saying, return_exceptions=True)
    progress.end()
    answers += [("rdma", f"not measured: {note}") for note in notes(found, settings)]
    return answers


async def _patiently(prober: Prober, lender: Lender, probe: Probe, progress: Progress) -> Figures:
    """One probe; a Mac that is busy with another is asked again for a while. Raises what ``Prober.once`` does."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await lender.measure(prober, probe)
        except talk.Refused as error:
            if error.again is None or error.again > SOON_SECONDS or time.monotonic() > until:
                raise
            progress.say(f"{probe.key}: waits, {error}")
            await asyncio.sleep(error.again * random.uniform(0.5, 1.5))


def _identity(own: Own) -> ssl.SSLContext:
    missing = [
        text
        for value, text in (
            (own.node, "the name of this Mac's Node (--node-name or $NODE_NAME)"),
            (own.host_ip, "its address (--host-ip or $HOST_IP)"),
            (own.state, "the certificate of its running agent (--state-folder)"),
        )
        if not value
    ]
    if missing or own.state is None:
        raise CannotMeasure(
            f"a link needs {', '.join(missing)}: run it in the agent's pod, as in "
            "`kubectl -n thunderfleet-system exec POD -- thunderfleet-agent measure link PEER`"
        )
    try:
        return identity.load(own.state).client
    except (OSError, ValueError) as error:
        raise CannotMeasure(f"the agent's certificate in {own.state} cannot be used: {error}") from None


async def _view(kube: Kube, own: Own, peer: str, settings: Settings) -> tuple[View, NodeProfile]:
    assert own.node is not None and own.host_ip is not None
    publisher = Publisher(kube, own.node)
    await publisher.look()
    mine, theirs = publisher.earlier, await publisher.profile_of(peer)
    if mine is None or theirs is None or theirs.status.agent is None:
        raise CannotMeasure(
            f"{peer if mine else own.node} has no NodeProfile with an agent: is it among `kubectl get np`, does its agent run?"
        )
    facts = [fact for fact in mine.status.reachability if fact.node == peer]
    ends = [link.spec for link in publisher.links]
    found = view(own.node, own.host_ip, mine.status, ends, publisher.links, facts, {peer: theirs.status.agent}, settings)
    return found, mine


def lines(answers: Mapping[str, Figures | str] | list[tuple[str, Figures | str]], output: str) -> str:
    """For people, or as JSON."""
    pairs = list(answers.items()) if isinstance(answers, Mapping) else answers
    if output == "json":
        said = [
            {
                "probe": name,
                **(
                    {"error": each} if isinstance(each, str) else each.model_dump(mode="json", by_alias=True, exclude_none=True)
                ),
            }
            for name, each in pairs
        ]
        return json.dumps(said, indent=2)
    return "\n".join(f"{name}: {each if isinstance(each, str) else each.words() + _by(each)}" for name, each in pairs)


def _by(figures: Figures) -> str:
    if not figures.device:
        return ""
    return f" ({figures.device}, mlx {figures.mlx_version}, {figures.os_version})"


async def run(what: str, peer: str | None, own: Own, settings: Settings, output: str) -> int:
    """0: measured; 1: not (all of it)."""
    progress = Progress(sys.stderr)
    try:
        if what == "link":
            answers = await link(peer or "", own, settings, progress)
        else:
            kinds = [Kind.GPU, Kind.MEMORY] if what == "all" else [Kind(what)]
            answers = [(kind.value, await device(kind, settings, progress)) for kind in kinds]
    except CannotMeasure as error:
        progress.end()
        print(f"thunderfleet-agent measure: {error}", file=sys.stderr)
        return 1
    print(lines(answers, output))
    return 1 if any(isinstance(each, str) and name != "rdma" for name, each in answers) else 0
