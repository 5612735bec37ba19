"""A group on loopback: keys, a plan, a model folder, and supervisors with a rank that needs no model."""

import asyncio
import contextlib
import datetime
import json
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME, Plan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_lib.backoff import Backoff
from thunderfleet_localcluster.image import WITHOUT_COMPILER
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.recorded import jaccl
from thunderfleet_runner.group import follower
from thunderfleet_runner.group.decide import attempts
from thunderfleet_runner.host.intakeprocess import intake_command
from thunderfleet_runner.host.rankprocess import rank_command
from thunderfleet_runner.supervisor import Supervisor, SupervisorSettings

from tests.support.network.ports import claim
from tests.support.waiting import until_async

STAND_IN = Path(__file__).with_name("stand_in_rank.py")
STAND_IN_INTAKE = Path(__file__).with_name("stand_in_intake.py")
LAYERS = 2
"""Of the test model. Two tensor ranks exchange data twice a layer and use all processors meanwhile. The best two logits of the
answer to ``tinymodel.MESSAGES`` are 0.03 apart, and the model ends it by itself only after 556 tokens."""


def _make_keys(folder: Path) -> Path:
    """A group's one certificate, as the operator makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, GROUP_TLS_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(GROUP_TLS_NAME)]), critical=False)
        .sign(key, None)
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def _make_model(folder: Path) -> Path:
    """The files that preflight needs: one tensor of four float32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    return folder


class Group:
    """A plan on 127.0.0.x, and the supervisors that a test has started."""

    def __init__(self, folder: Path, size: int, attempts_budget: int = 4) -> None:
        self.folder = folder
        self.keys = _make_keys(folder / "keys")
        self.model = _make_model(folder / "model")
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.plan = self.make_plan(size, attempts_budget)
        self.running: dict[int, tuple[Supervisor, asyncio.Task[None]]] = {}

    def make_plan(self, size: int, budget: int) -> Plan:
        ranks: list[dict[str, Any]] = []
        for rank in range(size):
            address = f"127.0.0.{rank + 1}"
            control, gateway, *ring = claim(2 + 2 * budget, address)
            ranks.append(
                {
                    "rank": rank,
                    "node": f"studio-{rank}",
                    "pod": f"tiny-0-{rank}",
                    "address": address,
                    "controlPort": control,
                    "gatewayPort": gateway,
                    "memoryBytes": 1 << 20,
                }
                | ({"ringAddress": address, "ringPorts": ring} if size > 1 else {})
            )
        return Plan.model_validate(
            {
                "namespace": "default",
                "deployment": "tiny",
                "uid": "5c1f",
                "index": 0,
                "epoch": 3,
                "model": "thunderfleet/tiny",
                "modelPath": str(self.model),
                "backend": "ring" if size > 1 else "none",
                "split": "Tensor" if size > 1 else "None",
                "ranks": ranks,
                "memory": {"contextTokens": 256, "concurrentRequests": 2, "cachedTokens": 0},
                "bootstrap": {"attempts": budget, "attemptTimeoutSeconds": 20},
            }
        )

    def settings(self, rank: int, **changes: Any) -> SupervisorSettings:
        settings = SupervisorSettings(
            plan=self.plan,
            pod=f"tiny-0-{rank}",
            node=f"studio-{rank}",
            keys_folder=self.keys,
            state_folder=self.folder / f"state-{rank}",
            command=lambda group, epoch, rank: [
                *(sys.executable, str(STAND_IN), "thunderfleet_runner.rank", "--group", group, "--rank", str(rank))
            ],
            intake=lambda path, group: [sys.executable, str(STAND_IN_INTAKE)],
            limits=attempts.Limits(self.plan.bootstrap.attempts, 20.0, backoff=Backoff(0.05, 30.0)),
            gateway=False,
            benchmark=False,
        )
        return replace(settings, **changes)

    def start(self, rank: int, **changes: Any) -> Supervisor:
        supervisor = Supervisor(self.settings(rank, **changes))
        self.running[rank] = (supervisor, asyncio.create_task(supervisor.run(), name=f"supervisor-{rank}"))
        return supervisor

    async def crash(self, rank: int) -> None:
        """As if the supervisor's process had been killed: connections end without a message."""
        _, task = self.running.pop(rank)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = 120.0) -> None:
        """Waits for a condition; a failure shows the state of every supervisor."""

        def holds() -> object:
            for rank, (_, task) in self.running.items():
                if task.done() and task.exception():
                    raise AssertionError(f"supervisor {rank} ended: {task.exception()!r}")
            return condition()

        def states() -> str:
            return "\n".join(supervisor.state.model_dump_json(exclude_defaults=True) for supervisor, _ in self.running.values())

        await until_async(holds, what, seconds, describe=states)

    async def until_ready(self) -> None:
        await self.until(lambda: self.running[0][0].state.phase is GroupPhase.READY, "the group is Ready")

    async def end(self) -> None:
        for supervisor, _ in self.running.values():
            supervisor.end()
        await asyncio.gather(*(task for _, task in self.running.values()), return_exceptions=True)


@pytest.fixture
async def make_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Group]]:
    """Makes groups by size; what a test leaves running is ended."""
    groups: list[Group] = []
    monkeypatch.setattr(follower, "RETRY", Backoff(0.05, 0.2))

    def make(size: int, **options: Any) -> Group:
        folder = tmp_path / f"group-{len(groups)}"
        folder.mkdir()
        group = Group(folder, size, **options)
        groups.append(group)
        monkeypatch.setenv("THUNDERFLEET_TEST_FOLDER", str(group.faults))
        return group

    yield make
    async with AsyncExitStack() as stack:
        for group in groups:
            stack.push_async_callback(group.end)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test model's folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tinymodel.make(folder, layers=LAYERS)
    return folder


def _answer_of_one_process(model: Path) -> list[int]:
    command = ["-m", "thunderfleet_localcluster.models.reference", str(model), tinymodel.MESSAGES[0]["content"]]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=True)
    tokens: list[int] = json.loads(done.stdout)
    assert len(tokens) == tinymodel.TOKENS
    return tokens


@pytest.fixture(scope="session")
def yardstick(tiny: Path) -> list[int]:
    """The answer of a single mlx-lm process to ``tinymodel.MESSAGES``."""
    return _answer_of_one_process(tiny)


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a test model with a layer for each of three ranks, and one more."""
    folder = tmp_path_factory.mktemp("models") / "deep"
    tinymodel.make(folder)
    return folder


@pytest.fixture(scope="session")
def deep_yardstick(deep: Path) -> list[int]:
    """That model's answer to the same chat."""
    return _answer_of_one_process(deep)


@pytest.fixture(autouse=True)
def shared_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ranks of a ring do not spin while they wait, as on recorded Macs."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(jaccl.MODULES)]))


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ranks compile no fused kernels: MLX's CPU build calls the C++ compiler for each."""
    for name, value in WITHOUT_COMPILER.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def preferred() -> Iterator[int]:
    """The nice value of what the test starts: below 0 if it is root, as the kubelet starts a group."""
    before, group = os.getpriority(os.PRIO_PROCESS, 0), os.getpgrp()
    value = -8 if os.geteuid() == 0 else before
    with contextlib.suppress(PermissionError):
        # A supervisor sets the value for its process group. The leader of a session has one of its own already.
        os.setpgid(0, 0)
    os.setpriority(os.PRIO_PROCESS, 0, value)
    yield value
    if os.getpgrp() != group:
        os.setpgid(0, group)
    os.setpriority(os.PRIO_PROCESS, 0, before)


Served = Callable[..., AbstractAsyncContextManager[tuple[Any, aiohttp.ClientSession]]]


@pytest.fixture
def served(make_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Served:
    """``served(model, size, split, …)``: a Ready group of real ranks, and a client of rank 0's gateway.

    MLX compiles fused kernels only if ``compiled``: the CPU build calls the C++ compiler for each. If ``spinning``, ranks ask
    their sockets again and again while they wait, as on Macs.
    """

    @asynccontextmanager
    async def serve(
        model: Path,
        size: int,
        split: str,
        *,
        benchmark: bool = False,
        compiled: bool = False,
        spinning: bool = False,
        memory: dict[str, int] | None = None,
        plan: dict[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[tuple[Any, aiohttp.ClientSession]]:
        if not compiled:
            for name, value in WITHOUT_COMPILER.items():
                monkeypatch.setenv(name, value)
        if spinning:
            paths = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path != str(jaccl.MODULES)]
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        group = make_group(size)
        planned = group.plan.model_dump(mode="json", by_alias=True)
        planned |= {"modelPath": str(model), "split": split}
        planned["memory"] = {"contextTokens": 512, "concurrentRequests": 4, "cachedTokens": 2048, **(memory or {})}
        planned["benchmark"] = {"promptTokens": 64, "generationTokens": 32}
        planned |= plan or {}
        share = LAYERS // size
        for entry in planned["ranks"]:
            entry["memoryBytes"] = 64 << 20
            if split == "Pipeline":
                first = LAYERS - share * (entry["rank"] + 1)
                entry["layers"] = [first, first + share]
        group.plan = Plan.model_validate(planned)
        # Real ranks import large packages, on busy machines.
        limits = attempts.Limits(group.plan.bootstrap.attempts, 120.0, backoff=Backoff(0.05, 30.0))
        settings = {"limits": limits, "command": rank_command, "intake": intake_command, **settings}
        for rank in range(size):
            group.start(rank, gateway=True, benchmark=benchmark, **settings)
        await group.until_ready()
        entry = group.plan.ranks[0]
        async with aiohttp.ClientSession(f"http://{entry.address}:{entry.gateway_port}") as client:
            yield group, client

    return serve


@pytest.fixture
def make_keys() -> Callable[[Path], Path]:
    """Makes a separate certificate in a folder."""
    return _make_keys


@pytest.fixture
def make_model() -> Callable[[Path], Path]:
    """Makes (again) the files of a tiny model in a folder."""
    return _make_model
