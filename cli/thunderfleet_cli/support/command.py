"""Collecting the archive of ``thunderfleet support`` from a cluster."""

import argparse
import asyncio
import json
import platform
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes.aio.config.config_exception import ConfigException
from rich.markup import escape
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.image import version
from thunderfleet_localcluster.paths import DEFAULT_NAME, users_kubeconfig
from thunderfleet_localcluster.progress import Progress

from thunderfleet_cli.support.archive import Archive
from thunderfleet_cli.support.redact import redact_object, redact_text
from thunderfleet_cli.support.requests import OBJECTS, LogRequest, ObjectRequest, pod_logs, trimmed
from thunderfleet_cli.support.tail import LOG_BYTES, tail
from thunderfleet_cli.support.thismac import add_this_mac, is_installed

ARCHIVE_BYTES = 128 << 20
LOG_LINES = 10_000
OBJECT_BYTES = 16 << 20
"""The text of one kind's objects in the archive. Any user can create thousands of objects of a megabyte each."""
MAX_LOGS = 1000
PARALLEL = 4
REQUEST_SECONDS = 15.0
TOTAL_SECONDS = 120.0
README = """\
Thunderfleet support archive, {time}

versions.json    versions of Thunderfleet, Python, this machine and the API server
objects/         Kubernetes objects; no Secrets
logs/pods/       logs of Thunderfleet's pods, at most {megabytes} MiB each
logs/local/      logs of the local cluster's programs, if it is one
local/           state of the local cluster, if it is one
mac/             on a Mac of a cluster: the API servers in its balancer's list, and those that it reaches
logs/mac/        logs of its LaunchDaemons
problems.txt     what could not be collected

Tokens, keys and passwords are replaced by [redacted]. Logs and objects still contain names and addresses of machines: read
them before you publish the archive.
"""


def support(arguments: argparse.Namespace) -> int:
    """``thunderfleet support``. Raises LocalClusterError."""
    with Progress() as progress:
        path, problems = write_archive(
            arguments.output, arguments.kubeconfig, arguments.context, arguments.name, arguments.dir, progress.running
        )
        for problem in problems:
            progress.line(escape(f"not collected: {problem}"))
    print(path)
    return 0


def write_archive(
    output: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    name: str,
    directory: Path | None,
    tell: Callable[[str], None],
) -> tuple[Path, Sequence[str]]:
    """Write the archive of the cluster in ``kubeconfig``; without it, of the local cluster ``name``.

    If the local cluster with the default name does not run, the cluster is that of $KUBECONFIG or ~/.kube/config. Returns the
    path of the archive and what could not be collected. Raises LocalClusterError.
    """
    cluster = None
    if kubeconfig is None:
        try:
            cluster = Cluster.attach(name, directory)
            kubeconfig = cluster.kubeconfig
        except LocalClusterError as error:
            kubeconfig = users_kubeconfig() if name == DEFAULT_NAME and directory is None else None
            if kubeconfig is None:
                text = f"{error}; for a cluster that is not local, name its kubeconfig with --kubeconfig FILE"
                raise LocalClusterError(text, usage=error.usage) from error
    now = datetime.now(UTC)
    path = output or Path(f"thunderfleet-support-{now:%Y%m%d-%H%M%S}.tar.gz")
    with Archive(path, ARCHIVE_BYTES) as archive:
        archive.add("README.txt", README.format(time=f"{now:%Y-%m-%d %H:%M:%S} UTC", megabytes=LOG_BYTES >> 20))
        if cluster is not None:
            tell("local cluster")
            _add_local(archive, cluster)
        layout = HostLayout(version())
        if is_installed(layout):
            tell("this Mac")
            add_this_mac(archive, layout)
        asyncio.run(_collect(archive, kubeconfig, context, tell))
        archive.add_problems()
    return path, archive.problems


def _add_local(archive: Archive, cluster: Cluster) -> None:
    """State and logs of a local cluster."""
    try:
        archive.add("local/status.json", _json(cluster.status()))
    except LocalClusterError as error:
        archive.problems.append(f"local/status.json: {error}")
    for log in (cluster.folder.spec, *sorted(cluster.logs.glob("*.log"))):
        name = "local/up.json" if log == cluster.folder.spec else f"logs/local/{log.name}"
        try:
            archive.add(name, redact_text(tail(log)))
        except OSError as error:
            archive.problems.append(f"{name}: {error.strerror}")


def _json(value: Any) -> str:
    return json.dumps(redact_object(value), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


async def _collect(archive: Archive, kubeconfig: Path, context: str | None, tell: Callable[[str], None]) -> None:
    """Objects and logs, within TOTAL_SECONDS. Failures are listed in the archive."""
    try:
        kube = await Kube.from_kubeconfig(kubeconfig, context)
    except (ConfigException, OSError) as error:
        raise LocalClusterError(f"cannot use kubeconfig {kubeconfig}: {error}", usage=True) from error
    async with kube:
        collector = _Collector(archive, kube, tell)
        try:
            async with asyncio.timeout(TOTAL_SECONDS):
                await collector.run()
        except TimeoutError:
            archive.problems.append(f"collecting stopped after {TOTAL_SECONDS:g} s")


class _Collector:
    """Requests to one API server, a few at a time. A request that fails becomes a problem of the archive."""

    def __init__(self, archive: Archive, kube: Kube, tell: Callable[[str], None]) -> None:
        self.archive, self.kube, self.tell = archive, kube, tell
        self._places = asyncio.Semaphore(PARALLEL)
        self._logs: list[LogRequest] = []
        """One more than are collected, if there are more."""

    async def run(self) -> None:
        """Collect everything."""
        self.tell("versions")
        await self._attempt("versions.json", self._versions())
        self.tell("objects")
        await asyncio.gather(*(self._attempt(f"objects/{item.name}.json", self._objects(item)) for item in OBJECTS))
        logs = self._logs[:MAX_LOGS]
        if len(self._logs) > MAX_LOGS:
            self.archive.problems.append(f"logs/pods: only the first {MAX_LOGS} logs")
        self.tell(f"{len(logs)} logs of pods")
        await asyncio.gather(*(self._attempt(f"logs/pods/{item.name}", self._log(item)) for item in logs))

    async def _attempt(self, name: str, work: Awaitable[str]) -> None:
        async with self._places:
            try:
                self.archive.add(name, await work)
            except ApiError as error:
                self.archive.problems.append(f"{name}: {error}")

    async def _versions(self) -> str:
        found: dict[str, Any] = {
            "thunderfleet": version(),
            "python": sys.version,
            "platform": platform.platform(),
            "server": self.kube.host,
        }
        try:
            found["kubernetes"] = await self.kube.request("GET", "/version", seconds=REQUEST_SECONDS)
        except ApiError as error:
            self.archive.problems.append(f"versions.json: {error}")
        return _json(found)

    async def _objects(self, wanted: ObjectRequest) -> str:
        """The objects as text, as far as there is room. Only one page of them is in memory as objects."""
        parts: list[str] = []
        room = OBJECT_BYTES
        query: dict[str, object] = {"labelSelector": wanted.selector} if wanted.selector else {}
        async for page in self.kube.pages(wanted.path, query):
            if wanted.name == "pods":
                self._logs += pod_logs(page.items)[: MAX_LOGS + 1 - len(self._logs)]
            for item in page.items if room >= 0 else []:
                text = _json(trimmed(item)).rstrip()
                room -= len(text.encode("utf-8", "replace"))
                if room < 0:
                    self.archive.problems.append(
                        f"objects/{wanted.name}.json: only the first {len(parts)} objects, because of the limit of "
                        f"{OBJECT_BYTES >> 20} MiB for each kind"
                    )
                    break
                parts.append(text)
            # Pods whose logs are wanted may be behind many pods of others.
            if room < 0 and (wanted.name != "pods" or len(self._logs) > MAX_LOGS):
                break
        return "[\n" + ",\n".join(parts) + "\n]\n"

    async def _log(self, wanted: LogRequest) -> str:
        query: dict[str, object] = {"container": wanted.container, "limitBytes": LOG_BYTES, "tailLines": LOG_LINES}
        if wanted.previous:
            query["previous"] = True
        answer = await self.kube.request("GET", wanted.path, query=query, seconds=REQUEST_SECONDS)
        # The client has already parsed a log that is a single JSON line.
        text = answer["text"] if answer.keys() == {"text"} else json.dumps(answer) if answer else ""
        return redact_text(str(text))
