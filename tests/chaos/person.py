"""A user who looks at a deployment throughout a fault: ``why``, ``status``, the live page, conditions, and alerts."""

import asyncio
import contextlib
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from thunderfleet_cli.connection import Connection
from thunderfleet_cli.view.picture import picture
from thunderfleet_cli.view.reports import status
from thunderfleet_controlplane.assets import MONITORING
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.programs import find_programs
from thunderfleet_view import facts
from thunderfleet_view.health import Health, of_condition
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.watch import Watch
from thunderfleet_view.why import State, Step, left, why

from tests.chaos.culprit import Channel, Culprit, Look
from tests.support.line import CHART, PROMETHEUS_PORT, Line
from tests.support.monitoring.prometheusserver import Prometheus, beside, scraping
from tests.support.network.connections import until_closed

Json = dict[str, Any]

LOOK_SECONDS = 2.0
SCRAPE_SECONDS = 3
# How long a problem must last in the expressions of alerts, and how long here: people are not called for less, but faults here
# are shorter. An agent without news publishes every minute.
PATIENCE = {
    re.compile(r"(?<=\(thunderfleet_modeldeployment_not_ready_timestamp_seconds\) )> \d+"): "> 15",
    re.compile(r"(?<=intake_ends_total\{cause=~\"time\|other\"\}\[15m\]\)\)\) )> \d+"): "> 0",
    re.compile(r"(?<=\(thunderfleet_agent_published_timestamp_seconds\) )> \d+"): "> 150",
}


def impatient(rules: Json) -> Json:
    """The rules of the chart, without the time that a problem must last."""
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)
        for pattern, limit in PATIENCE.items():
            rule["expr"] = pattern.sub(limit, rule["expr"])
    return rules


@contextlib.contextmanager
def watching(line: Line) -> Iterator[Prometheus]:
    """A Prometheus with the chart's alerts. Raises LocalClusterError."""
    programs = find_programs(lambda event: None, MONITORING)
    done = line.cluster.helm("template", "x", str(CHART), "--set", "alerts.enabled=true", "-s", "templates/alerts.yaml")
    with tempfile.TemporaryDirectory(prefix="thunderfleet-chaos-") as name:
        folder, interval = Path(name), f"{SCRAPE_SECONDS}s"
        rules = folder / "rules.yaml"
        rules.write_text(yaml.safe_dump(impatient(yaml.safe_load(done.stdout)["spec"])))

        def configure(server: str, folder: Path) -> Json:
            return scraping(server, folder, rules, (), interval, interval)

        with beside(line, programs, configure, folder, PROMETHEUS_PORT) as found:
            yield found


def _sentence(step: Step) -> str:
    return f"{step.subject}: {step.text}"


def _conditions(deployment: Mapping[str, Any]) -> Iterator[str]:
    for kind, condition in facts.conditions(deployment).items():
        if of_condition(condition) in (Health.BAD, Health.DOUBTFUL):
            yield f"{kind} {condition.get('status')}: {facts.said(condition)}"


class LivePage:
    """What ``kubectl thunderfleet ui`` sends to browsers, from ``__enter__`` to ``__exit__``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._feed = Feed()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._configured = threading.Event()

    def __enter__(self) -> "LivePage":
        self._thread.start()
        # The client keeps keys of kubeconfigs in files that other threads find before they have been written.
        self._configured.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(60)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about what has a problem, and the notes at the top of the page."""
        found = (json.loads(text) for text in list(self._feed.texts.values()))
        cards = (f"{one['id'].replace('/', ' ', 1)}: {one['problem']}" for one in found if one["problem"])
        return (*sorted(cards), *self._feed.notes)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        async def watch() -> None:
            try:
                made = await self._connection.kube()
            finally:
                self._configured.set()
            async with made as kube:
                await Watch(kube, self._feed, leased=True).run()

        # It ends what the watches have open, too, before it closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, contextlib.suppress(asyncio.CancelledError):
            try:
                runner.run(watch())
            finally:
                runner.run(until_closed())


@dataclass
class Person:
    """Looks every few seconds from ``__enter__`` to ``__exit__``. ``seen``: what differed from the look before."""

    line: Line
    namespace: str
    name: str
    prometheus: Prometheus | None = None
    seen: list[Look] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _page: LivePage | None = None

    def __enter__(self) -> "Person":
        # Where nobody asks who has named what was hit, there are no alerts either.
        if self.prometheus is not None:
            self._page = LivePage(self._connection).__enter__()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join(60)
        if self._page:
            self._page.__exit__()

    def knows(self, culprits: Sequence[Culprit], channels: Sequence[Channel]) -> bool:
        """Whether all culprits have been named in all of these channels."""
        looks = list(self.seen)
        return all(one.first(looks, channel) is not None for one in culprits for channel in channels)

    def look_back(self) -> None:
        """Looks once more, at every problem and past failure that ``why`` shows now."""
        with asyncio.Runner() as runner:
            found = self._steps(runner)
            runner.run(until_closed())
        self.seen.append(Look(time.monotonic() - self._began, {Channel.AFTERWARDS: found}))

    def _run(self) -> None:
        # One loop for all looks: a look at a silent API server leaves connections that close during later ones.
        with asyncio.Runner() as runner:
            while not self._over.is_set():
                texts = {**self._objects(runner), Channel.ALERT: self._alerts()}
                # The page is live, and commands may wait for a silent API server.
                texts[Channel.PAGE] = self._page.problems if self._page else ()
                if not self.seen or texts != self.seen[-1].texts:
                    self.seen.append(Look(time.monotonic() - self._began, texts))
                self._over.wait(LOOK_SECONDS)
            runner.run(until_closed())

    @property
    def _connection(self) -> Connection:
        return Connection(self.line.cluster.kubeconfig, None, self.namespace, None)

    def _picture(self, runner: asyncio.Runner) -> facts.Picture:
        return runner.run(picture(self._connection, self.namespace))

    def _objects(self, runner: asyncio.Runner) -> dict[Channel, tuple[str, ...]]:
        try:
            found = self._picture(runner)
        except LocalClusterError as error:
            return {Channel.WHY: (str(error),), Channel.STATUS: (str(error),), Channel.CONDITION: ()}
        deployment = next((one for one in found.deployments if facts.name(one) == self.name), None)
        shown = status.as_values(found)
        problems = [
            f"{kind}{one['name']}: {one['problem']}"
            for key, kind in (("macs", ""), ("cables", "cable "), ("controlPlane", ""), ("deployments", ""))
            for one in shown[key]
            if one["problem"]
        ]
        texts = {Channel.STATUS: tuple(problems)}
        if deployment is None:
            rest = left(found, self.name)
            return {**texts, Channel.WHY: (f"{self.name} is {rest}",) if rest else (), Channel.CONDITION: ()}
        cause = why(found, deployment).cause
        said = () if cause is None else (_sentence(cause),)
        return {**texts, Channel.WHY: said, Channel.CONDITION: tuple(_conditions(deployment))}

    def _steps(self, runner: asyncio.Runner) -> tuple[str, ...]:
        try:
            found = self._picture(runner)
        except LocalClusterError as error:
            return (str(error),)
        return tuple(
            _sentence(step)
            for deployment in found.deployments
            if facts.name(deployment) == self.name
            for step in why(found, deployment).steps
            if step.state is not State.OK or step.subject.startswith("last failure")
        )

    def _alerts(self) -> tuple[str, ...]:
        if self.prometheus is None:
            return ()
        try:
            alerts = self.prometheus.get("alerts")["alerts"]
        except (OSError, AssertionError, ValueError) as error:
            return (f"Prometheus: {error}",)
        return tuple(sorted(_alert(one) for one in alerts if one["state"] == "firing"))


def _alert(one: Json) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in sorted(one["labels"].items()) if key not in ("alertname", "severity"))
    notes = one["annotations"]
    return f"{one['labels']['alertname']}{{{labels}}}: {notes.get('summary', '')}. {notes.get('description', '')}"
