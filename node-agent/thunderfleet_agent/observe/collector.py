"""Runs the commands of discovery and keeps the latest facts.

One failure of a command does not mean that the Mac has changed: the failure is published at once, but the last value stays
until the command has failed ``PATIENCE`` times in a row (a static value stays forever).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from thunderfleet_crds.kinds.nodeprofile import Runtime
from thunderfleet_lib.host import gpu_memory
from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Host, Output, quote
from thunderfleet_lib.host.parsing import ParseError, Partial, require_text
from thunderfleet_lib.macnet import parse as network
from thunderfleet_lib.rdma import parse as rdma

from thunderfleet_agent.observe import panics
from thunderfleet_agent.observe.facts import Facts, Source
from thunderfleet_agent.observe.kept_sizes import KeptSizes
from thunderfleet_agent.observe.models import RUNNER, Library
from thunderfleet_agent.observe.parsers import hardware, thunderbolt

log = logging.getLogger(__name__)

PATIENCE = 3
# Static values are read again after this time.
STATIC_SECONDS = 3600.0
CAPABILITIES_COMMAND = (RUNNER, "capabilities", "-o", "json")


@dataclass(frozen=True)
class Question:
    """One command: its field in ``Facts``, its parser, and its time limit in seconds.

    ``salvage`` gives the text to parse although the command failed, or None.
    """

    source: Source
    part: str
    argv: tuple[str, ...]
    seconds: float
    parse: Callable[[str], Any]
    static: bool = False
    salvage: Callable[[Failure], str | None] = lambda failure: None


def parse_capabilities(text: str) -> Runtime:
    """Reads the output of ``thunderfleet-runner capabilities -o json``. Raises ParseError."""
    try:
        values = json.loads(text)
        return Runtime.load(
            {
                "mlxVersion": values.get("mlxVersion"),
                "mlxLmVersion": values.get("mlxLmVersion"),
                "backends": values.get("backends") or [],
            }
        )
    except (ValueError, AttributeError, RecursionError, ValidationError) as error:
        raise ParseError(" ".join(CAPABILITIES_COMMAND), f"printed invalid output: {quote(str(error))}") from None


def _no_devices(failure: Failure) -> str | None:
    """`ibv_devinfo` may exit with an error if there is no device."""
    return rdma.NO_DEVICES_TEXT if rdma.NO_DEVICES_TEXT in failure.text + failure.error else None


def _partial(failure: Failure) -> str | None:
    """`sysctl` exits with an error for an unknown variable, but prints the others."""
    return failure.text if failure.kind is FailureKind.FAILED and failure.text.strip() else None


# The limits are far above the usual times: a command that exceeds its limit counts as hanging, which a busy Mac must not cause.
INTERFACES = Question(Source.INTERFACES, "interfaces", network.IFCONFIG_COMMAND, 10, network.parse_ifconfig)
RDMA_SWITCH = Question(Source.RDMA_SWITCH, "rdma_switch", rdma.STATUS_COMMAND, 10, rdma.parse_status)
RDMA_DEVICES = Question(Source.RDMA_DEVICES, "rdma_devices", rdma.DEVICES_COMMAND, 10, rdma.parse_devices, salvage=_no_devices)
RDMA_INFO = Question(Source.RDMA_INFO, "rdma_info", rdma.DEVINFO_COMMAND, 10, rdma.parse_devinfo, salvage=_no_devices)
THUNDERBOLT = Question(Source.THUNDERBOLT, "thunderbolt", thunderbolt.COMMAND, 20, thunderbolt.parse)
HARDWARE_PORTS = Question(
    Source.HARDWARE_PORTS, "hardware_ports", network.HARDWARE_PORTS_COMMAND, 10, network.parse_hardware_ports
)
SERVICES = Question(Source.SERVICES, "services", network.SERVICE_ORDER_COMMAND, 10, network.parse_service_order)
SYSCTL = Question(Source.SYSCTL, "sysctl", hardware.SYSCTL_COMMAND, 10, hardware.parse_sysctl, salvage=_partial)
HARDWARE = Question(Source.HARDWARE, "hardware", hardware.HARDWARE_COMMAND, 20, hardware.parse_hardware, static=True)
DISPLAYS = Question(Source.DISPLAYS, "gpu_cores", hardware.DISPLAYS_COMMAND, 20, hardware.parse_displays, static=True)
GPU_MEMORY = Question(Source.GPU_MEMORY, "gpu_memory", gpu_memory.COMMAND, gpu_memory.SECONDS, gpu_memory.parse, static=True)
SYSTEM = Question(Source.SYSTEM, "system", hardware.SW_VERS_COMMAND, 10, hardware.parse_sw_vers, static=True)
RUNTIME = Question(Source.RUNTIME, "runtime", CAPABILITIES_COMMAND, 60, parse_capabilities, static=True)
QUESTIONS = (
    *(HARDWARE, DISPLAYS, SYSCTL, GPU_MEMORY, SYSTEM, RUNTIME, THUNDERBOLT, HARDWARE_PORTS),
    *(INTERFACES, SERVICES, RDMA_SWITCH, RDMA_DEVICES, RDMA_INFO),
)


class Collector:
    """The facts, and the rounds that update them. Different rounds may run concurrently."""

    def __init__(
        self,
        host: Host,
        model_folders: Sequence[Path] = (),
        observed: Callable[[Source, float, Failure | None], None] = lambda source, seconds, failure: None,
        panic_folder: Path = panics.FOLDER,
        kept_sizes: KeptSizes | None = None,
    ) -> None:
        self.facts = Facts()
        self.library = Library(host, model_folders, kept=kept_sizes)
        self._host = host
        self._panics = panic_folder
        self._observed = observed
        self._misses: dict[Source, int] = {}
        self._answered: dict[Source, float] = {}
        self._wired_limit: str | None = None
        self._texts: dict[Source, tuple[str, Any]] = {}
        """The last output of each command with its parsed value, because most outputs do not change."""

    async def fast(self, fresh: float = 0.0) -> None:
        """Reads what changes with cables: addresses, carriers, RDMA. Interfaces that were read ``fresh`` seconds ago count."""
        answered = self._answered.get(Source.INTERFACES)
        if answered is not None and time.monotonic() - answered < fresh:
            await self._rdma()
        else:
            await asyncio.gather(self._ask(INTERFACES), self._rdma())

    async def carriers(self) -> None:
        """Reads only the interfaces, which takes little time and shows a pulled cable. ``fast`` counts the failures."""
        await self._ask(INTERFACES, only_answers=True)

    async def _rdma(self) -> None:
        await asyncio.gather(self._ask(RDMA_SWITCH), self._ask(RDMA_DEVICES))
        if self.facts.rdma_devices:
            await self._ask(RDMA_INFO)
        else:
            # Without devices there is nothing to describe, and if the RDMA stack hangs, this avoids one command.
            self._answer(RDMA_INFO, ())

    async def slow(self) -> None:
        """Reads Thunderbolt, hardware ports, services and limits, and static values that are unknown or old."""
        await asyncio.gather(*(self._ask(question) for question in (THUNDERBOLT, HARDWARE_PORTS, SERVICES, SYSCTL)))
        for question in (HARDWARE, DISPLAYS, SYSTEM):
            await self._ask_once(question)
        limit = (self.facts.sysctl or {}).get("iogpu.wired_limit_mb")
        if limit != self._wired_limit:
            # The answer of MLX depends on it.
            self._answered.pop(Source.GPU_MEMORY, None)
        self._wired_limit = limit
        await self._ask_once(GPU_MEMORY)
        # macOS writes the report a while after the reboot.
        panic = await asyncio.to_thread(panics.newest, self._panics)
        self.facts = replace(self.facts, panic=panic)

    async def runtime(self) -> None:
        """Reads the versions and backends of MLX."""
        await self._ask_once(RUNTIME)

    async def scan_models(self) -> None:
        """Reads the models on disk."""
        await asyncio.to_thread(self.library.scan)
        self._models()

    async def size_model(self) -> bool:
        """Sizes one model. Returns False if none was due."""
        done = await self.library.size_next()
        self._models()
        return done

    def _models(self) -> None:
        failures = dict(self.facts.failures)
        failures.pop(Source.MODELS, None)
        if self.library.problems:
            folders = " ".join(f"--model-folder {root}" for root in self.library.roots)
            text = "the model folders cannot be read completely: " + "; ".join(self.library.problems)
            failures[Source.MODELS] = Failure(folders, FailureKind.UNREADABLE, text)
        self.facts = replace(self.facts, models=self.library.models, failures=MappingProxyType(failures))

    async def _ask_once(self, question: Question) -> None:
        answered = self._answered.get(question.source)
        if answered is None or time.monotonic() - answered >= STATIC_SECONDS:
            await self._ask(question)

    async def _ask(self, question: Question, *, only_answers: bool = False) -> None:
        began = time.monotonic()
        outcome = await self._host.run(question.argv, question.seconds)
        failure: Failure | None = None
        partial: Partial | None = None
        text: str | None
        if isinstance(outcome, Output):
            text = outcome.text
        else:
            text = question.salvage(outcome)
            failure = outcome if text is None else None
        if text is not None:
            try:
                require_text(" ".join(question.argv), text)
                self._answer(question, self._meaning(question, text))
            except ParseError as error:
                failure = Failure(error.command, FailureKind.UNREADABLE, error.problem)
                partial = error if isinstance(error, Partial) else None
        self._observed(question.source, time.monotonic() - began, failure)
        if failure is not None and not only_answers:
            self._fail(question, failure, partial)

    def _meaning(self, question: Question, text: str) -> Any:
        """Parses the output. Raises ParseError."""
        if question.static:
            return question.parse(text)
        known = self._texts.get(question.source)
        if known is None or known[0] != text:
            known = self._texts[question.source] = text, question.parse(text)
        return known[1]

    def _answer(self, question: Question, value: Any) -> None:
        if self._misses.pop(question.source, 0):
            log.info("`%s` responds again", " ".join(question.argv))
        self._answered[question.source] = time.monotonic()
        failures = {source: failure for source, failure in self.facts.failures.items() if source is not question.source}
        self.facts = replace(self.facts, **{question.part: value, "failures": MappingProxyType(failures)})

    def _fail(self, question: Question, failure: Failure, partial: Partial | None) -> None:
        """Records the failure. A complete earlier value stays for a while; a partial one is better than none."""
        if self.facts.failures.get(question.source) != failure:
            log.warning("%s", failure)
        misses = self._misses[question.source] = self._misses.get(question.source, 0) + 1
        changes: dict[str, Any] = {
            "failures": MappingProxyType({**self.facts.failures, question.source: replace(failure, text="", error="")})
        }
        known = getattr(self.facts, question.part)
        if partial is not None:
            self._answered[question.source] = time.monotonic()
            if known is None or (misses >= PATIENCE and not question.static):
                changes[question.part] = partial.value
        elif misses >= PATIENCE and not question.static:
            changes[question.part] = None
        self.facts = replace(self.facts, **changes)
