"""caffeinate runs exactly while it is wanted. It is a script here."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from thunderfleet_kubelet.node import awake
from thunderfleet_kubelet.node.awake import Awake
from thunderfleet_lib.backoff import Backoff

from tests.support.processes import exists
from tests.support.waiting import until_async


def script(folder: Path, body: str) -> str:
    path = folder / "caffeinate"
    path.write_text(f'#!/bin/sh\necho "$$ $@" >> {folder}/started\n{body}\n')
    path.chmod(0o755)
    return str(path)


def started(folder: Path) -> list[list[str]]:
    """Process id and arguments of each start."""
    file = folder / "started"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@asynccontextmanager
async def running(program: str | None) -> AsyncIterator[Awake]:
    found = Awake(program)
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_runs_while_wanted_and_ends_with_the_kubelet(tmp_path: Path) -> None:
    async with running(script(tmp_path, "exec sleep 600")) as mac:
        mac.want(True)
        await until_async(lambda: started(tmp_path))
        ((pid, *arguments),) = started(tmp_path)
        assert arguments == ["-is", "-w", str(os.getpid())]
        mac.want(True)
        assert exists(int(pid))
        mac.want(False)
        await until_async(lambda: not exists(int(pid)))
        mac.want(True)
        await until_async(lambda: len(started(tmp_path)) == 2)
        second = int(started(tmp_path)[1][0])
    assert not exists(second)


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "END_SECONDS", 0.05)
    async with running(script(tmp_path, "trap '' TERM; while :; do sleep 600 & wait; done")) as mac:
        mac.want(True)
        await until_async(lambda: started(tmp_path))
    assert not exists(int(started(tmp_path)[0][0]))


async def test_one_that_ends_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(awake, "BACKOFF", Backoff(first=0.01, limit=0.01))
    async with running(script(tmp_path, "exit 3")) as mac:
        mac.want(True)
        await until_async(lambda: len(started(tmp_path)) > 2)
    assert "caffeinate: ended with exit code 3; this Mac may sleep while pods run; retrying in" in caplog.text


async def test_one_that_cannot_start_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(str(tmp_path / "missing")) as mac:
        mac.want(True)
        await until_async(lambda: "caffeinate: No such file or directory" in caplog.text)


async def test_a_machine_without_it_starts_nothing(tmp_path: Path) -> None:
    async with running(None) as machine:
        machine.want(True)
        await until_async(lambda: not machine._changed.is_set(), "it has seen the wish")
        machine.want(False)
        await until_async(lambda: not machine._changed.is_set(), "and its end")
