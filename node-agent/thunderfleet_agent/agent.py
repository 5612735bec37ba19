"""``thunderfleet-agent run``: puts the parts of the agent together and runs them until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from thunderfleet_crds.kinds.nodeprofile import Agent
from thunderfleet_lib.host.descriptors import allow_descriptors
from thunderfleet_lib.host.hostcmd import Host
from thunderfleet_lib.kube import Kube

from thunderfleet_agent.copies.controller import Counters, PeerCopies
from thunderfleet_agent.copies.server import CopyServer
from thunderfleet_agent.copies.shelf import Shelf
from thunderfleet_agent.measure.ledger import Ledger
from thunderfleet_agent.measure.prober import Prober
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.observe import kept_sizes
from thunderfleet_agent.observe.collector import Collector
from thunderfleet_agent.observe.kept_sizes import KeptSizes
from thunderfleet_agent.observe.sensors import SensorReader
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.dial_rounds import DialRounds
from thunderfleet_agent.peers.identity import Identity
from thunderfleet_agent.peers.known_peers import KnownPeers
from thunderfleet_agent.publish.publisher import Publisher
from thunderfleet_agent.rounds import AgentSettings, Rounds
from thunderfleet_agent.server import Server
from thunderfleet_agent.weights.keeper import Keeper

log = logging.getLogger(__name__)


async def run(settings: AgentSettings) -> int:
    """Runs until SIGTERM or SIGINT. Returns 0, or 1 if the agent cannot start or fails."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    allow_descriptors()
    metrics = Metrics()
    host = Host()
    try:
        kube = await Kube.connect(settings.kubeconfig)
        certificate = await identity.make(host, settings.state)
    except Exception as error:
        log.error("cannot start: %s", error)
        return 1
    async with kube:
        return await _serve(settings, host, metrics, kube, certificate, stop)


async def _serve(
    settings: AgentSettings, host: Host, metrics: Metrics, kube: Kube, certificate: Identity, stop: asyncio.Event
) -> int:
    kept = KeptSizes(settings.state, kept_sizes.installed())
    collector = Collector(host, settings.model_folders, metrics.observed, kept_sizes=kept)
    publisher = Publisher(kube, settings.node, metrics.wrote)
    dial_rounds = DialRounds(publisher, settings.host_ip, certificate.client, metrics.dialled)
    known_peers = KnownPeers(dial_rounds.agent_of, publisher.profile_of)
    ledger = Ledger(settings.node, settings.state)
    prober = Prober(settings.node, settings.measure, certificate.client, ledger, lambda: rounds.publish_soon(), metrics)
    metrics.show_measurements(prober)
    rounds = Rounds(settings, collector, publisher, metrics, dial_rounds, prober)
    folder = settings.model_store or next(iter(settings.model_folders), Path("/"))
    rounds.sensors = SensorReader(host, folder, root=sys.platform == "darwin" and os.geteuid() == 0)
    metrics.show_sensors(settings.node, rounds.sensors.latest, rounds.links)
    if settings.model_store is not None:
        rounds.keeper = Keeper(
            kube,
            settings.node,
            settings.model_store,
            rounds.publish_soon,
            rounds.scan_soon,
            lambda: [use.model_path for use in publisher.groups if use.model_path],
        )
    server = Server(
        settings.host_ip, settings.node, metrics, rounds.trouble, known_peers.accepts, dial_rounds.knows, dial_rounds.greeted
    )
    if rounds.keeper is not None:
        shelf = Shelf(rounds.keeper.store, settings.node)
        counters = Counters(metrics.received, metrics.wrong_bytes)
        rounds.keeper.peers = rounds.copies = PeerCopies(
            settings.node, shelf, certificate.client, publisher.agent_of, settings.copy_limits, counters
        )
        rounds.keeper.completed = shelf.prepare
        server.copies = CopyServer(settings.node, shelf, known_peers.accepts, certificate.server, metrics.sent.inc)
        metrics.copies.set_function(lambda: rounds.copies.running if rounds.copies else 0)
    try:
        port, metrics_port = await server.start(settings.listen_port, settings.metrics_port, certificate.server)
    except OSError as error:
        text = "if a port is in use, end the program that uses it, or set agent.port and agent.metricsPort of the chart"
        log.error("cannot listen on %s: %s; %s", settings.host_ip, error, text)
        await server.close()
        return 1
    rounds.listen, rounds.move = server.listen_on, server.move
    server.measure = prober.answer
    rounds.agent = Agent(address=settings.host_ip, port=port, certificate_sha256=certificate.sha256)
    log.info("listening on %s, ports %d (agents) and %d (metrics)", settings.host_ip, port, metrics_port)
    running = asyncio.create_task(rounds.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    running.cancel()
    (outcome,) = await asyncio.gather(running, return_exceptions=True)
    await server.close()
    if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
        log.error("stopped by an internal error: %r", outcome)
        return 1
    log.info("stopped")
    return 0
