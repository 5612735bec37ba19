"""The steps of the commands: read, choose, show."""

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_view import facts
from thunderfleet_view import why as explain
from thunderfleet_view.facts import Json, Picture

from thunderfleet_cli.connection import Connection, connect
from thunderfleet_cli.view.page import BAD, QUIET, Page
from thunderfleet_cli.view.picture import picture, read_lists
from thunderfleet_cli.view.reports import cables, events, logs, status, top, topology, why
from thunderfleet_cli.view.reports.svg import svg

LOG_BYTES = 4 << 20
PARALLEL_LOGS = 8
MAX_FOLLOWED = 64
CLUSTER_EVENTS = "default"
"""The namespace of events of objects that have none."""


def _now() -> datetime:
    return datetime.now(UTC)


def _connect(arguments: argparse.Namespace) -> tuple[Connection, str | None]:
    """The cluster, and the namespace to show; None for all."""
    connection = connect(arguments.kubeconfig, arguments.context, arguments.namespace)
    return connection, None if getattr(arguments, "all_namespaces", False) else connection.namespace


def _read(arguments: argparse.Namespace) -> Picture:
    return asyncio.run(picture(*_connect(arguments)))


def _print(values: Any) -> int:
    print(json.dumps(values, indent=2, ensure_ascii=False))
    return 0


def show_status(arguments: argparse.Namespace) -> int:
    """``thunderfleet status``. Raises LocalClusterError."""
    found = _read(arguments)
    if arguments.output == "json":
        return _print(status.as_values(found))
    status.show(found, Page(), _now())
    return 0


def show_cables(arguments: argparse.Namespace) -> int:
    """``thunderfleet cables``. Raises LocalClusterError."""
    found = _read(arguments)
    if arguments.output == "json":
        return _print(cables.as_values(found))
    cables.show(found, Page())
    return 0


def show_topology(arguments: argparse.Namespace) -> int:
    """``thunderfleet topology``. Raises LocalClusterError."""
    found = _read(arguments)
    if arguments.output == "json":
        return _print(topology.as_values(topology.topology(found)))
    if arguments.output == "svg":
        print(svg(topology.topology(found)), end="")
        return 0
    topology.show(found, Page())
    return 0


def show_why(arguments: argparse.Namespace) -> int:
    """``thunderfleet why DEPLOYMENT``; 1 if it does not serve as it should. Raises LocalClusterError."""
    found = _read(arguments)
    explained = explain.why(found, _deployment(found, arguments.deployment))
    if arguments.output == "json":
        _print(explain.as_values(explained))
    else:
        why.show(explained, found, Page())
    return 1 if explained.cause else 0


def show_top(arguments: argparse.Namespace) -> int:
    """``thunderfleet top``. Raises LocalClusterError."""
    connection, namespace = _connect(arguments)
    # Groups of all namespaces use the Macs. Users without rights in all namespaces see the groups of one.
    try:
        found = asyncio.run(picture(connection, None))
    except LocalClusterError:
        found = asyncio.run(picture(connection, namespace))
    usage, missing = asyncio.run(_usage(connection))
    if arguments.output == "json":
        return _print(top.as_values(found, usage))
    top.show(found, usage, missing, Page())
    return 0


async def _usage(connection: Connection) -> tuple[Sequence[Json] | None, str]:
    try:
        lists, _ = await read_lists(connection, ("usage",), None)
    except LocalClusterError as error:
        return None, str(error)
    return lists["usage"], ""


def show_events(arguments: argparse.Namespace) -> int:
    """``thunderfleet events [DEPLOYMENT]``. Raises LocalClusterError."""
    connection, namespace = _connect(arguments)
    found = asyncio.run(picture(connection, namespace, events=True))
    if namespace not in (None, CLUSTER_EVENTS):
        found = replace(found, events=[*found.events, *asyncio.run(_cluster_events(connection))])
    deployment = _deployment(found, arguments.deployment) if arguments.deployment else None
    chosen = events.chosen(found, deployment)
    if arguments.output == "json":
        return _print(events.as_values(chosen))
    events.show(chosen, found, Page(), _now())
    return 0


async def _cluster_events(connection: Connection) -> Sequence[Json]:
    """Events of Macs and cables; none if the user may not read them."""
    try:
        lists, _ = await read_lists(connection, ("events",), CLUSTER_EVENTS)
    except LocalClusterError:
        return ()
    return lists["events"]


def show_logs(arguments: argparse.Namespace) -> int:
    """``thunderfleet logs DEPLOYMENT``. Raises LocalClusterError."""
    connection, namespace = _connect(arguments)
    found = asyncio.run(picture(connection, namespace))
    deployment = _deployment(found, arguments.deployment)
    wanted = logs.sources(facts.pods_of(found, deployment))
    if not wanted:
        raise LocalClusterError(
            f"no pod of ModelDeployment {arguments.deployment} has started: `thunderfleet why {arguments.deployment}` shows why"
        )
    page = Page()
    show: Callable[[logs.Line], None] = _print_line if arguments.output == "json" else partial(_show_line, page)
    texts = asyncio.run(_logs(connection, wanted, arguments.tail))
    for line in logs.merged(texts, logs.causes(deployment)):
        show(line)
    if arguments.follow:
        asyncio.run(_follow(connection, wanted[:MAX_FOLLOWED], show))
    return 0


def _print_line(line: logs.Line) -> None:
    if not line.rest:
        print(json.dumps(logs.as_values(line), ensure_ascii=False), flush=True)


def _show_line(page: Page, line: logs.Line) -> None:
    marked = line.cause
    page.cells((f"{line.time[11:23]:<12} {line.label}  ", BAD if marked else QUIET), (line.text, BAD if marked else ""))


async def _logs(connection: Connection, wanted: Sequence[logs.Source], tail: int) -> dict[str, str]:
    """The last lines of each log. A log that cannot be read has a line with the reason."""
    places = asyncio.Semaphore(PARALLEL_LOGS)

    async def one(kube: Kube, source: logs.Source) -> str:
        query = {"container": source.container, "timestamps": True, "tailLines": tail, "limitBytes": LOG_BYTES}
        async with places:
            try:
                answer = await kube.request("GET", source.path, query=query)
            except ApiError as error:
                return f"cannot read the log of pod {source.pod}: {error}"
        return str(answer.get("text") or "")

    async with await connection.kube() as kube:
        texts = await asyncio.gather(*(one(kube, source) for source in wanted))
    return {source.label: text for source, text in zip(wanted, texts, strict=True)}


async def _follow(connection: Connection, wanted: Sequence[logs.Source], show: Callable[[logs.Line], None]) -> None:
    """Lines as they come, until all containers have ended."""

    async def one(kube: Kube, source: logs.Source) -> None:
        query = {"container": source.container, "timestamps": True, "follow": True, "sinceSeconds": 1}
        try:
            async for raw in kube.lines(source.path, query):
                for line in logs.parsed(source.label, raw):
                    show(line)
        except ApiError as error:
            show(logs.Line("", f"{logs.CAUSE} {source.label}", str(error)))

    async with await connection.kube() as kube:
        await asyncio.gather(*(one(kube, source) for source in wanted))


def _deployment(found: Picture, name: str) -> Json:
    """The ModelDeployment of that name, or ``namespace/name``. Raises LocalClusterError."""
    short = name.rpartition("/")[2]
    for deployment in found.deployments:
        if facts.name(deployment) == short and name in (short, facts.full_name(deployment)):
            return deployment
    if said := explain.left(found, name):
        raise LocalClusterError(f"ModelDeployment {name} is {said}")
    known = ", ".join(facts.name(one) for one in found.deployments[:20]) or "none"
    where = f"namespace {found.namespace}" if found.namespace else "any namespace"
    raise LocalClusterError(
        f"there is no ModelDeployment {name} in {where}; there: {known}. Name another namespace with -n", usage=True
    )
