"""Reading logs from disk in every way; probes of real listeners."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_kubelet.containers.streams import logs
from thunderfleet_kubelet.containers.streams.logs import LogOptions
from thunderfleet_kubelet.pods.act import probes
from thunderfleet_kubelet.pods.decide.probing import ProbeCount
from thunderfleet_kubelet.shim.log import LINE_BYTES, Log, Stream

Json = dict[str, Any]
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def line(number: int, text: str, tag: str = "F") -> str:
    return f"{logs.format_stamp(START + timedelta(seconds=number))} stdout {tag} {text}\n"


async def read(path: Path, **options: Any) -> str:
    return b"".join([part async for part in logs.read(path, LogOptions(**options), lambda: False)]).decode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    (tmp_path / "0.log.2").write_text(line(0, "zero") + line(1, "one"))
    (tmp_path / "0.log.1").write_text(line(2, "two, ", "P") + line(2, "all of it"))
    path.write_text(line(3, "three") + line(4, "four"))
    return path


async def test_all_files_are_one_log(log: Path) -> None:
    assert await read(log) == "zero\none\ntwo, all of it\nthree\nfour\n"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (0, ""),
        (1, "four\n"),
        (2, "three\nfour\n"),
        (3, "two, all of it\nthree\nfour\n"),
        (4, "one\ntwo, all of it\nthree\nfour\n"),
        (99, "zero\none\ntwo, all of it\nthree\nfour\n"),
    ],
)
async def test_tail_counts_whole_lines_over_files(log: Path, tail: int, expected: str) -> None:
    assert await read(log, tail=tail) == expected


@pytest.mark.parametrize(("tail", "expected"), [(None, ["zero", "one", "two, all of it", "three", "four"]), (1, ["four"])])
async def test_what_is_written_meanwhile_is_for_those_who_follow(log: Path, tail: int | None, expected: list[str]) -> None:
    """A container that writes as fast as its log is read would keep everyone who only wants to look."""
    found = ""
    async for part in logs.read(log, LogOptions(tail=tail), lambda: True):
        found += part.decode()
        with log.open("a") as file:
            file.write(line(5, "later"))
        assert len(found) < 1000, "the log has no end"
    assert found.splitlines() == expected


async def test_the_last_lines_are_those_at_the_start(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = logs.tail_start

    async def and_then_writes(fd: int, *args: Any) -> tuple[int, int]:
        with log.open("a") as file:
            file.write(line(5, "later"))
        return await search(fd, *args)

    monkeypatch.setattr(logs, "tail_start", and_then_writes)
    assert await read(log, tail=2) == "three\nfour\n"


async def test_one_stream_alone(log: Path) -> None:
    with log.open("a") as file:
        file.write(line(5, "to stderr").replace("stdout", "stderr"))
    assert await read(log, stream="stderr") == "to stderr\n"
    assert await read(log, stream="stdout") == "zero\none\ntwo, all of it\nthree\nfour\n"


async def test_since_timestamps_and_limit(log: Path) -> None:
    assert await read(log, since=START + timedelta(seconds=3)) == "three\nfour\n"
    assert await read(log, tail=1, timestamps=True) == "2026-01-02T03:04:09.000000000Z four\n"
    assert await read(log, limit_bytes=7) == "zero\non"


async def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    assert await read(tmp_path / "none.log") == ""


async def test_following_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    writer = Log(str(path), limit=200, files=3)
    live = True
    seen: list[str] = []

    async def follow() -> None:
        async for part in logs.read(path, LogOptions(follow=True), lambda: live):
            seen.append(part.decode())

    task = asyncio.create_task(follow())
    for number in range(20):
        writer.write("stdout", [(str(number).encode(), True)])
        if number % 5 == 4:
            async with asyncio.timeout(60):
                while True:
                    if "".join(seen).count("\n") > number:
                        break
                    await asyncio.sleep(0.01)
    live = False
    await asyncio.wait_for(task, 60)
    assert "".join(seen).split() == [str(number) for number in range(20)]
    assert len(logs.files_of(path)) == 3


async def test_a_follower_that_missed_rotations_reads_the_files_between(tmp_path: Path) -> None:
    """Nothing is read while a client does not take what was read before, or while the kubelet is frozen."""
    path = tmp_path / "0.log"
    writer = Log(str(path), limit=200, files=9)
    writer.write("stdout", [(b"0", True)])
    live = True
    parts = logs.read(path, LogOptions(follow=True), lambda: live)
    seen = [(await anext(parts)).decode()]
    for number in range(1, 20):
        writer.write("stdout", [(str(number).encode(), True)])
    live = False
    seen += [part.decode() async for part in parts]
    assert len(logs.files_of(path)) > 3, "rotated more than once"
    assert "".join(seen).split() == [str(number) for number in range(20)]


async def test_a_long_search_for_the_last_lines_lets_others_run(tmp_path: Path) -> None:
    """Everyone who may read logs can ask for the last million lines again and again."""
    path, count = tmp_path / "0.log", 20 * logs.TURN_LINES
    path.write_text("".join(line(number, "") for number in range(count)))
    chunks = logs.read(path, LogOptions(tail=count), lambda: False)
    first = asyncio.ensure_future(anext(chunks))
    turns = 0
    while not first.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 20
    assert len((await first).splitlines()) > 1000
    assert sum([len(part.splitlines()) async for part in chunks], len((await first).splitlines())) == count


@pytest.mark.parametrize("tail", [None, 15])
async def test_a_rotation_while_files_are_opened_leaves_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int | None
) -> None:
    path = tmp_path / "0.log"
    writer = Log(str(path), limit=200, files=9)
    for number in range(19):
        writer.write("stdout", [(str(number).encode(), True)])
    listed, before = logs.files_of, len(logs.files_of(path))

    def and_then_rotates(path: Path) -> list[Path]:
        found = listed(path)
        if len(found) == before:
            writer.limit = 0
            writer.write("stdout", [(b"19", True)])
        return found

    monkeypatch.setattr(logs, "files_of", and_then_rotates)
    wanted = [str(number) for number in range(20)][-(tail or 20) :]
    assert (await read(path, tail=tail)).split() == wanted


@pytest.mark.parametrize("refused", [errno.ENOSPC, errno.EMFILE])
async def test_a_log_that_cannot_be_rotated_now_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    path = tmp_path / "0.log"
    writer = Log(str(path), limit=100, files=3)
    for number in range(6):
        writer.write("stdout", [(str(number).encode(), True)])
    before = {file.name: file.read_bytes() for file in logs.files_of(path)}
    real = os.open

    def full(file: str, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(refused, "refused")
        return real(file, flags, *more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        for _ in range(5):
            writer.write("stdout", [(b"x" * 90, True)])
    assert {file.name: file.read_bytes() for file in logs.files_of(path)} == before, "nothing is rotated away"
    writer.write("stdout", [(b"after", True)])
    assert (await read(path)).split()[-1] == "after"
    assert path.with_name("0.log.1").read_bytes() == before["0.log"]


async def test_a_line_that_a_full_disk_cut_ends_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.log"
    writer = Log(str(path), limit=10**9, files=3)
    writer.write("stdout", [(b"before", True)])
    real, room = os.write, 45

    def full(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "full")
        written = real(fd, data[:room])
        room -= written
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        writer.write("stdout", [(b"while it is full", True)])
        writer.write("stdout", [(b"lost", True)])
    writer.write("stdout", [(b"after", True)])
    writer.write("stdout", [(b"and on", True)])
    assert (await read(path)).splitlines() == ["before", "while", "after", "and on"]


@given(lines=st.lists(st.tuples(st.text("ab ", max_size=5), st.booleans()), max_size=30), tail=st.integers(0, 12))
@settings(deadline=None)
def test_tail_is_the_end_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, bool]], tail: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    path.write_text("".join(line(number, text, "F" if full else "P") for number, (text, full) in enumerate(lines)))
    whole = asyncio.run(read(path))
    end = asyncio.run(read(path, tail=tail))
    assert whole.endswith(end)
    wanted = min(tail, sum(full for _, full in lines))
    assert end.count("\n") == wanted


def test_long_lines_are_parts(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "0.log"), 10**9, 2)
    reader, writer = os.pipe()
    stream = Stream("stderr", reader, log)
    os.write(writer, b"x" * (LINE_BYTES + 5) + b"\nlast")
    while stream.read():
        pass
    os.close(writer)
    while stream.open:
        stream.read()
    rows = (tmp_path / "0.log").read_bytes().splitlines()
    assert [(row.split(b" ")[1:3], len(row.split(b" ")[3])) for row in rows] == [
        ([b"stderr", b"P"], LINE_BYTES),
        ([b"stderr", b"F"], 5),
        ([b"stderr", b"F"], 4),
    ]


# Probes


def test_a_verdict_needs_as_many_equal_results_as_the_threshold() -> None:
    count = ProbeCount(success_threshold=2, failure_threshold=3)
    results = [False, False, True, False, False, False, False, True, False, True, True]
    changes = [count.add(result) for result in results]
    assert changes == [False] * 5 + [True] + [False] * 4 + [True]
    assert count.verdict is True


@given(st.lists(st.booleans(), max_size=50), st.integers(1, 5), st.integers(1, 5))
def test_a_verdict_changes_only_after_a_run(results: list[bool], success: int, failure: int) -> None:
    count = ProbeCount(success, failure)
    for index, result in enumerate(results):
        before = count.verdict
        changed = count.add(result)
        assert changed == (count.verdict != before)
        if changed:
            need = success if result else failure
            assert results[index + 1 - need : index + 1] == [result] * need


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.sleep(30)
        status = {"/ok": 200, "/moved": 302, "/bad": 503}.get(request.path, 404)
        if request.path == "/circle":
            return web.Response(status=302, headers={"Location": "/circle"})
        headers = {"Location": request.query["to"]} if "to" in request.query else {}
        return web.Response(status=status, text=request.headers.get("X-Test", "-"), headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def no_exec(command: list[str], seconds: float) -> tuple[int, str]:
    raise FileNotFoundError(f"command {command[0]!r} was not found")


async def ask(action: Json, container: Json | None = None, seconds: float = 5) -> tuple[bool, str]:
    return await probes.run(action, container or {"name": "c"}, "127.0.0.1", no_exec, seconds)


async def test_http_probes(port: int) -> None:
    named = {"name": "c", "ports": [{"name": "web", "containerPort": port}]}
    assert await ask({"httpGet": {"path": "/ok", "port": "web"}}, named) == (True, "")
    assert (await ask({"httpGet": {"path": "moved", "port": port}}))[0]
    good, said = await ask({"httpGet": {"path": "/bad", "port": port, "httpHeaders": [{"name": "X-Test", "value": "v"}]}})
    assert not good
    assert "statuscode: 503" in said
    assert said.endswith(": v")
    good, said = await ask({"httpGet": {"path": "/slow", "port": port}}, seconds=0.1)
    assert (good, said) == (False, f"GET http://127.0.0.1:{port}/slow: timed out after 0.1 s")
    assert not (await ask({"httpGet": {"path": "/", "port": port, "scheme": "HTTPS"}}))[0]
    assert "no port named 'other'" in (await ask({"httpGet": {"port": "other"}}, named))[1]


@pytest.mark.parametrize(
    ("to", "good"),
    [
        ("/ok", True),
        ("/bad", False),
        ("http://127.0.0.2:1/", True),
        ("/moved?to=/ok", True),
        ("http://[", True),
        ("ftp://a", True),
    ],
)
async def test_redirects_to_the_same_host_are_followed(port: int, to: str, good: bool) -> None:
    assert (await ask({"httpGet": {"path": f"/moved?to={quote(to)}", "port": port}}))[0] is good


async def test_a_probe_that_is_led_in_a_circle_fails(port: int) -> None:
    circle = f"/moved?to={quote(f'http://127.0.0.1:{port}/moved?to=')}"
    assert (await ask({"httpGet": {"path": circle, "port": port}}))[0], "the end of the circle has no target"
    good, said = await ask({"httpGet": {"path": "/circle", "port": port}})
    assert not good and said.endswith("stopped after 10 redirects")


async def test_tcp_and_exec_probes(port: int) -> None:
    assert (await ask({"tcpSocket": {"port": port}}))[0]
    good, said = await ask({"tcpSocket": {"port": 1}})
    assert not good
    assert "127.0.0.1:1" in said
    assert await ask({"exec": {"command": ["x"]}}) == (False, "command 'x' was not found")


async def _no_exec(command: list[str], seconds: float) -> tuple[int, str]:
    raise RuntimeError("something nobody thought of")


async def test_a_probe_that_breaks_down_has_failed() -> None:
    good, said = await probes.run({"exec": {"command": ["true"]}}, {"name": "main"}, "127.0.0.1", _no_exec, 1.0)
    assert not good
    assert "something nobody thought of" in said


async def test_a_hook_that_sleeps_takes_no_more_than_the_grace() -> None:
    async with asyncio.timeout(60):
        assert await probes.run({"sleep": {"seconds": 3600}}, {"name": "main"}, "127.0.0.1", _no_exec, 0.01) == (True, "")
