"""``thunderfleet-agent measure``: one probe now, with a progress line, for a user at a terminal.

GPU and memory need only this Mac. A link needs what the running agent has: its certificate (by which the peer identifies this
Mac), the API server, and a Mac that takes part in no other probe; so it runs in the agent's pod, for example with `kubectl
exec`.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.vocabulary import MeasurementTransport
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_agent.measure.ledger import Ledger
from thunderfleet_agent.measure.prober import Preempted, Prober
from thunderfleet_agent.measure.schedule.figures import Figures
from thunderfleet_agent.measure.schedule.probes import LOCAL, Probe, ProbeKind, local_settings
from thunderfleet_agent.measure.schedule.settings import MeasureSettings, Rdma, Sockets
from thunderfleet_agent.measure.schedule.view import View, notes, view, wanted
from thunderfleet_agent.measure.session import channel
from thunderfleet_agent.measure.session import lease as leases
from thunderfleet_agent.measure.session.probe_lock import MacBusy
from thunderfleet_agent.measure.session.result import ProbeRefused, SessionFailed
from thunderfleet_agent.measure.worker import parent
from thunderfleet_agent.measure.worker.pair import WRONG_SUM
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.dial_plan import PeerAddress
from thunderfleet_agent.publish.publisher import Publisher

# Without a terminal, progress is printed at most this often.
QUIET_SECONDS = 2.0
TICK_SECONDS = 0.5
# Requests to a busy Mac are repeated for this time, if it may be free within SOON_SECONDS.
PATIENCE_SECONDS = 60.0
SOON_SECONDS = 5.0
UNITS = {ProbeKind.GPU: "GFLOPS", ProbeKind.MEMORY: "MB/s"}
"""The unit of what a probe of this Mac alone reports as its progress."""

# A test of a cable moves as little as the settings allow.
TEST_BYTES = 2**20
TEST_SECONDS = 10


class CannotMeasure(Exception):
    """Why there is no result."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe: figures, or why there are none.

    ``refused``: the probe did not begin, so the cable was not tested. ``wrong_sum``: two processes formed a
    group, but computed a wrong sum.
    """

    probe: str
    figures: Figures | None = None
    error: str = ""
    kind: str = ""
    link: str = ""
    refused: bool = False
    wrong_sum: bool = False

    @property
    def failed(self) -> bool:
        """Whether the measurement failed."""
        return self.figures is None and bool(self.kind)


def settings_for_test(transport: MeasurementTransport) -> MeasureSettings:
    """Settings of probes that are as short as possible: they show whether a cable works, not how fast it is."""
    sockets = Sockets(bytes=TEST_BYTES, cable_bytes=TEST_BYTES, streams=1)
    return MeasureSettings(sockets=sockets, rdma=Rdma(bytes=TEST_BYTES, seconds=TEST_SECONDS, transport=transport))


@dataclass(frozen=True)
class LocalAgent:
    """What a link needs of this Mac's running agent; None where it is not known."""

    node: str | None
    host_ip: str | None
    state: Path | None
    kubeconfig: Path | None


@dataclass(frozen=True)
class AgentLease:
    """This Mac's own agent, which keeps other probes away during an interactive measurement."""

    node: str
    address: PeerAddress
    context: ssl.SSLContext

    async def measure(self, prober: Prober, probe: Probe) -> Figures:
        """Runs one probe under the agent's lease. Raises what ``Prober.run_once`` raises."""
        async with channel.connect(self.address, self.node, self.context, self.address.address) as (agent, _, _):
            return await leases.borrow(agent, probe, lambda: prober.run_once(probe))


class StatusLine:
    """One line that is overwritten; without a terminal, a new line at intervals."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._live = out, out.isatty()
        self._started, self._quiet_until, self._text = time.monotonic(), 0.0, ""

    def show(self, text: str) -> None:
        """Shows the text with the elapsed time."""
        now, self._text = time.monotonic(), text
        if not self._live and now < self._quiet_until:
            return
        self._quiet_until = now + QUIET_SECONDS
        line = f"{time.monotonic() - self._started:5.1f} s  {text}"
        self._out.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        self._out.flush()

    async def keep_showing(self) -> None:
        """Repeats the last text with the elapsed time, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.show(self._text)

    def end(self) -> None:
        """Removes the line."""
        if self._live:
            self._out.write("\r\x1b[K")


async def device(what: ProbeKind, settings: MeasureSettings, progress: StatusLine) -> Figures:
    """Measures this Mac alone, such as GPU compute or memory bandwidth. Raises CannotMeasure."""
    unit = UNITS[what]
    best = 0.0

    async def heard(message: dict[str, Any]) -> None:
        nonlocal best
        best = max(best, float(message.get("progress") or 0))
        state = "measuring" if message.get("steady") else "warming up"
        progress.show(f"{what}: {best:.4g} {unit} ({state})")

    progress.show(f"{what}: starting MLX")
    try:
        found = await parent.run({"what": what.value, "seconds": local_settings(settings, what).seconds}, heard)
    except parent.WorkerFailed as error:
        raise CannotMeasure(f"{what}: {error}") from None
    finally:
        progress.end()
    return Figures.model_validate(found)


async def link(
    peer: str, own: LocalAgent, settings: MeasureSettings, progress: StatusLine, *, only_cables: bool = False
) -> list[ProbeResult]:
    """Measures every cable and address to ``peer``; each with its figures, or why there are none. Raises CannotMeasure.

    ``only_cables``: without its addresses on other networks.
    """
    context = _identity(own)
    assert own.node is not None and own.host_ip is not None
    if peer == own.node:
        raise CannotMeasure(f"{peer} is this Mac; choose another Mac from `kubectl get np`")
    try:
        kube = await Kube.connect(own.kubeconfig)
    except Exception as error:
        raise CannotMeasure(
            f"cannot connect to the API server (set --kubeconfig, or run in the agent's pod): {error}"
        ) from None
    async with kube:
        progress.show(f"reading the profiles of {own.node} and {peer}")
        try:
            found, mine = await _view(kube, own, peer, settings)
        except ApiError as error:
            raise CannotMeasure(f"cannot read from the API server: {error}") from None
    agent = mine.status.agent
    if agent is None:
        raise CannotMeasure(f"the agent of {own.node} is not running: its NodeProfile has no status.agent; check its pod")
    prober = Prober(own.node, settings, context, Ledger(own.node), interactive=True)
    prober.set_view(found)
    prober.set_groups(mine.status.groups)
    lease = AgentLease(own.node, PeerAddress(own.node, agent.address, agent.port, agent.certificate_sha256, None), context)
    probes = [probe for probe in wanted(found, settings) if probe.target.node == peer]
    if only_cables:
        probes = [probe for probe in probes if probe.target.link]
    if not probes:
        where = "of a cable to" if only_cables else "of"
        raise CannotMeasure(
            f"{own.node} cannot reach any address {where} {peer}; see status.reachability in "
            f"`kubectl get np {own.node} -o yaml`"
        )
    results: list[ProbeResult] = []
    for probe in probes:
        progress.show(f"{probe.key} (at most {probe.seconds:.0f} s)")
        showing = asyncio.create_task(progress.keep_showing())
        about = ProbeResult(str(probe.key), kind=probe.kind.value, link=probe.target.link)
        try:
            results.append(replace(about, figures=await _patiently(prober, lease, probe, progress)))
        except (MacBusy, Preempted, ProbeRefused) as error:
            results.append(replace(about, error=f"not measured: {error}", refused=True))
        except (SessionFailed, parent.WorkerFailed, OSError) as error:
            results.append(replace(about, error=f"not measured: {error}", wrong_sum=WRONG_SUM in str(error)))
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
    progress.end()
    return results + [ProbeResult("rdma", error=f"not measured: {note}") for note in notes(found, settings)]


async def _patiently(prober: Prober, lease: AgentLease, probe: Probe, progress: StatusLine) -> Figures:
    """Runs one probe, and repeats the request to a busy Mac for a while. Raises what ``Prober.run_once`` raises."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await lease.measure(prober, probe)
        except ProbeRefused as error:
            if error.retry_seconds is None or error.retry_seconds > SOON_SECONDS or time.monotonic() > until:
                raise
            progress.show(f"{probe.key}: waiting: {error}")
            await asyncio.sleep(error.retry_seconds * random.uniform(0.5, 1.5))


def _identity(own: LocalAgent) -> ssl.SSLContext:
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
            f"measuring a link requires {', '.join(missing)}. Run it in the agent's pod: "
            "`kubectl -n thunderfleet-system exec POD -- thunderfleet-agent measure link PEER`"
        )
    try:
        return identity.load(own.state).client
    except (OSError, ValueError) as error:
        text = f"the agent's certificate in {own.state} cannot be used: {error}; restart the agent's pod"
        raise CannotMeasure(text) from None


async def _view(kube: Kube, own: LocalAgent, peer: str, settings: MeasureSettings) -> tuple[View, NodeProfile]:
    assert own.node is not None and own.host_ip is not None
    publisher = Publisher(kube, own.node)
    await publisher.look()
    mine, theirs = publisher.earlier, await publisher.profile_of(peer)
    if mine is None or theirs is None or theirs.status.agent is None:
        raise CannotMeasure(
            f"{peer if mine else own.node} has no NodeProfile with an agent: check the name in `kubectl get np`, and that the "
            "agent of that Mac runs"
        )
    facts = [fact for fact in mine.status.reachability if fact.node == peer]
    ends = [link.spec for link in publisher.links]
    found = view(own.node, own.host_ip, mine.status, ends, publisher.links, facts, {peer: theirs.status.agent}, settings)
    return found, mine


def lines(results: Sequence[ProbeResult], output: str) -> str:
    """The results as human-readable text or JSON."""
    if output == "json":
        return json.dumps([_values(each) for each in results], indent=2)
    return "\n".join(f"{one.probe}: {one.figures.words() + _by(one.figures) if one.figures else one.error}" for one in results)


def _values(result: ProbeResult) -> dict[str, Any]:
    about = {
        "kind": result.kind,
        "link": result.link,
        "error": result.error,
        "refused": result.refused,
        "wrongSum": result.wrong_sum,
    }
    found = result.figures.model_dump(mode="json", by_alias=True, exclude_none=True) if result.figures else {}
    return {"probe": result.probe, **{name: value for name, value in about.items() if value}, **found}


def _by(figures: Figures) -> str:
    if not figures.device:
        return ""
    return f" ({figures.device}, mlx {figures.mlx_version}, {figures.os_version})"


async def run(
    what: str, peer: str | None, own: LocalAgent, settings: MeasureSettings, output: str, *, only_cables: bool = False
) -> int:
    """Returns 0 if everything was measured, otherwise 1."""
    progress = StatusLine(sys.stderr)
    try:
        if what == "link":
            results = await link(peer or "", own, settings, progress, only_cables=only_cables)
        else:
            kinds = LOCAL if what == "all" else (ProbeKind(what),)
            results = [ProbeResult(kind.value, await device(kind, settings, progress), kind=kind.value) for kind in kinds]
    except CannotMeasure as error:
        progress.end()
        print(f"thunderfleet-agent measure: {error}", file=sys.stderr)
        return 1
    print(lines(results, output))
    return 1 if any(each.failed for each in results) else 0
