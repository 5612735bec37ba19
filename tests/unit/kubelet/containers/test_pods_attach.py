"""kubectl attach: input and raw output of containers with ``stdin`` or ``tty``, through real shims."""

import asyncio
import os
import select
import termios
from collections.abc import AsyncIterator

import pytest
from thunderfleet_kubelet.containers.streams.attach import Attached
from thunderfleet_kubelet.pods.queries import NoInput, PodLookupError
from thunderfleet_kubelet.shim import console
from thunderfleet_kubelet.shim.console import Console

from tests.support.pods import World, sh, state

SECONDS = 60


async def attach(world: World, name: str, *, stdin: bool = True) -> Attached:
    found = await world.managers[-1].queries.attach("default", name, "main", stdin=stdin)
    assert found is not None
    return found


async def until_seen(stream: AsyncIterator[bytes], words: bytes) -> bytes:
    """What arrives until ``words`` are there."""
    seen = b""
    async with asyncio.timeout(SECONDS):
        async for data in stream:
            seen += data
            if words in seen:
                return seen
    raise AssertionError(f"the output ended: {seen!r}")


async def test_input_output_and_errors_reach_the_client_without_waiting_for_a_whole_line(world: World) -> None:
    await world.boot()
    script = 'while read line; do printf "%s? " "$line"; echo "$line!" >&2; done; echo over'
    world.api.add_pod("talks", {"containers": [sh(script, stdin=True, stdinOnce=True)]})
    await world.phase("talks", "Running")
    client = await attach(world, "talks")
    await client.stdin.write(b"one\n")
    assert await until_seen(client.stdout, b"one? ") == b"one? "
    assert await until_seen(client.stderr, b"one!\n") == b"one!\n"
    await client.stdin.close()
    assert (await until_seen(client.stdout, b"over\n")).endswith(b"over\n"), "stdinOnce: the input ends with its first client"
    async with asyncio.timeout(SECONDS):
        rest = [data for stream in (client.stdout, client.stderr) async for data in stream]
    assert rest == [], "the output ends with the program"
    assert await client.wait() == 0
    await client.kill()
    await world.phase("talks", "Succeeded")
    assert await world.log("talks") == "one!\none? over\n"


async def test_the_input_stays_open_for_the_next_client_and_over_a_restart_of_the_kubelet(world: World) -> None:
    await world.boot()
    world.api.add_pod("stays", {"containers": [sh("while read line; do echo got $line; done", stdin=True)]})
    await world.phase("stays", "Running")
    for number in range(2):
        client = await attach(world, "stays")
        await client.stdin.write(b"%d\n" % number)
        await until_seen(client.stdout, b"got %d\n" % number)
        await client.kill()
        await world.managers[-1].stop(end_pods=False)
        await world.boot()
        await world.phase("stays", "Running")
    assert await world.log("stays") == "got 0\ngot 1\n"


async def test_a_terminal_has_a_size_echoes_and_interrupts(world: World) -> None:
    await world.boot()
    script = "trap 'echo interrupted; exit 3' INT; tty >/dev/null && echo ready $TERM; while read l; do stty size; done"
    world.api.add_pod("term", {"containers": [sh(script, stdin=True, tty=True)]})
    await world.phase("term", "Running")
    client = await attach(world, "term")
    assert client.tty
    client.resize(120, 40)
    await client.stdin.write(b"go\n")
    assert b"go\r\n" in await until_seen(client.stdout, b"40 120\r\n"), "the terminal echoes"
    await client.stdin.write(b"\x03")
    await until_seen(client.stdout, b"interrupted")
    async with asyncio.timeout(SECONDS):
        assert await client.wait() == 0
    await client.kill()
    status = await world.phase("term", "Failed")
    assert state(status)["terminated"]["exitCode"] == 3
    assert "ready xterm" in await world.log("term")


async def test_two_clients_see_the_same_and_one_that_goes_takes_nothing_away(world: World) -> None:
    await world.boot()
    world.api.add_pod("shared", {"containers": [sh("while read line; do echo $line; done", stdin=True)]})
    await world.phase("shared", "Running")
    first, second = await attach(world, "shared"), await attach(world, "shared", stdin=False)
    await first.stdin.write(b"a\n")
    assert await until_seen(first.stdout, b"a\n") == await until_seen(second.stdout, b"a\n")
    await second.kill()
    for word in (b"b\n", b"c\n"):
        await first.stdin.write(word)
        await until_seen(first.stdout, word)
    await first.kill()


async def test_without_stdin_input_is_refused_and_output_is_the_log(world: World) -> None:
    await world.boot()
    world.api.add_pod("deaf", {"containers": [sh("sleep 3600")]})
    await world.phase("deaf", "Running")
    queries = world.managers[-1].queries
    assert await queries.attach("default", "deaf", "main", stdin=False) is None
    with pytest.raises(NoInput, match="set stdin: true in its spec, or use kubectl exec -i"):
        await queries.attach("default", "deaf", "main", stdin=True)
    with pytest.raises(PodLookupError, match="not found"):
        await queries.attach("default", "none", "main", stdin=True)


def test_a_client_that_does_not_read_loses_its_connection_and_stops_nothing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    (folder / "attach").mkdir()
    readers = []
    for name in ("slow.stdout", "fast.stdout"):
        os.mkfifo(folder / "attach" / name)
        readers.append(os.open(folder / "attach" / name, os.O_RDONLY | os.O_NONBLOCK))
    monkeypatch.setattr(console, "CLIENT_BYTES", 4096)
    made = Console(str(folder), tty=False, stdin=False)
    made.look()
    assert list((folder / "attach").iterdir()) == [] and len(made.clients) == 2
    read = 0
    for _ in range(200):
        made.put("stdout", b"x" * 1024)
        read += len(os.read(readers[1], 65536))
    assert len(made.clients) == 1 and read == 200 * 1024
    for fd in (*readers, *made.clients):
        os.close(fd)


def test_names_of_clients_that_are_gone_or_too_many_are_deleted(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    (folder / "attach").mkdir()
    os.mkfifo(folder / "attach" / "gone.stdout")
    monkeypatch.setattr(console, "CLIENTS", 1)
    readers = []
    for number in range(3):
        os.mkfifo(folder / "attach" / f"{number}.stdout")
        readers.append(os.open(folder / "attach" / f"{number}.stdout", os.O_RDONLY | os.O_NONBLOCK))
    made = Console(str(folder), tty=False, stdin=False)
    made.look()
    assert len(made.clients) == 1 and list((folder / "attach").iterdir()) == []
    for fd in (*readers, *made.clients):
        os.close(fd)


def test_a_size_that_was_written_before_input_counts_for_that_input(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    (folder / "attach").mkdir()
    os.mkfifo(folder / "stdin")
    made, poll = Console(str(folder), tty=True, stdin=True), select.poll()
    inner = made.open(None, None)
    poll.register(made.outer, select.POLLIN)
    made.serve(poll)
    (folder / "size").write_text("111 33")
    writer = os.open(folder / "stdin", os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"stty size\n")
    # No signal has come yet.
    assert made.handles(made.pipe)
    assert termios.tcgetwinsize(inner) == (33, 111)
    for fd in (writer, inner, made.outer, made.pipe):
        os.close(fd)


def test_clients_that_left_a_quiet_program_take_no_places(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    (folder / "attach").mkdir()
    monkeypatch.setattr(console, "CLIENTS", 2)
    made = Console(str(folder), tty=False, stdin=False)
    for number in range(5):
        os.mkfifo(folder / "attach" / f"{number}.stdout")
        reader = os.open(folder / "attach" / f"{number}.stdout", os.O_RDONLY | os.O_NONBLOCK)
        made.look()
        if number < 4:
            os.close(reader)
    made.put("stdout", b"seen")
    assert os.read(reader, 10) == b"seen"
    for fd in (reader, *made.clients):
        os.close(fd)


def test_a_name_that_the_kubelet_deletes_at_the_same_time_ends_no_shim(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    (folder / "attach").mkdir()
    os.mkfifo(folder / "attach" / "late.stdout")
    opened = os.open

    def deleted(path: str, flags: int) -> int:
        os.unlink(path)
        return opened(path, flags)

    made = Console(str(folder), tty=False, stdin=False)
    monkeypatch.setattr(os, "open", deleted)
    made.look()
    assert made.clients == {}


def test_a_program_that_ends_while_input_waits_for_its_terminal(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    (folder / "attach").mkdir()
    os.mkfifo(folder / "stdin")
    made, poll = Console(str(folder), tty=True, stdin=True), select.poll()
    inner = made.open(None, None)
    poll.register(made.outer, select.POLLIN)
    made.serve(poll)
    writer = os.open(folder / "stdin", os.O_WRONLY | os.O_NONBLOCK)
    while not made.rest:
        os.write(writer, b"x\n" * 1000)
        assert made.handles(made.pipe)
    outer, pipe = made.outer, made.pipe
    os.close(inner)
    made.closed(outer)
    assert made.pipe == made.outer == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pipe)
    for fd in (writer, outer):
        os.close(fd)
