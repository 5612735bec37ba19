"""The rules hold, in this process and in those that it starts. Only with ``-p tests.darwin.plugin``."""

import asyncio
import errno
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from thunderfleet_kubelet.containers import leftovers, mac_memory
from thunderfleet_kubelet.node.usage import machine_usage
from thunderfleet_kubelet.shim import processes

from tests.darwin import libsystem, loopback, rules

pytestmark = pytest.mark.skipif(rules.PROC_VARIABLE not in os.environ, reason="only under the rules of macOS")

HANGS = """
import os, select
reader, writer = os.pipe()
os.close(writer)
poll = select.poll()
poll.register(reader, int(__import__("sys").argv[1]))
print(len(poll.poll(0)), hasattr(select, "epoll"))
"""

NICE = """
import os
from concurrent.futures import ThreadPoolExecutor

def nice():
    return os.getpriority(os.PRIO_PROCESS, 0)

with ThreadPoolExecutor(1) as pool:
    before = pool.submit(nice).result()
    os.setpriority(os.PRIO_PROCESS, 0, before + 1)
    print(before, nice(), pool.submit(nice).result())
"""


def test_there_is_no_proc_and_no_sys_and_ps_speaks_bsd() -> None:
    assert [str(path) for path in Path("/proc").rglob("*")] == ["/proc/self", "/proc/self/fd"]
    assert os.listdir("/sys") == []
    assert os.listdir("/dev/fd")
    assert processes.birth(os.getpid())
    done = subprocess.run(["ps", "-ef"], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (1, "ps: illegal option -- e\n")


def test_ps_hides_the_environment_of_apple_binaries_only() -> None:
    env = {"MARK": "visible"}
    apple = subprocess.Popen(["/bin/sleep", "60"], env=env)
    other = subprocess.Popen([sys.executable, "-ISc", "input()"], env=env, stdin=subprocess.PIPE, start_new_session=True)
    try:
        lines = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, timeout=20, check=True)
        found = {int(line.split()[0]): "MARK=visible" in line for line in lines.stdout.splitlines()}
        assert (found[apple.pid], found[other.pid]) == (False, True)
    finally:
        for process in (apple, other):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("mask", "seen"), [(0, "0"), (select.POLLHUP, "0"), (select.POLLIN, "1")])
def test_poll_sees_a_hang_up_only_with_another_event_also_in_children(mask: int, seen: str) -> None:
    done = subprocess.run([sys.executable, "-c", HANGS, str(mask)], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == [seen, "False"]


async def test_an_event_loop_learns_of_data_in_a_named_pipe_and_not_of_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)
    other, others_writer = os.pipe()
    loop, seen, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_reader(reader, seen.set)
    loop.add_reader(other, ended.set)
    try:
        os.write(writer, b"x")
        async with asyncio.timeout(20):
            await seen.wait()
        assert os.read(reader, 10) == b"x"
        seen.clear()
        os.close(writer)
        os.close(others_writer)
        # Both have ended before the loop looks again.
        async with asyncio.timeout(20):
            await ended.wait()
        assert not seen.is_set() and os.read(reader, 10) == b""
    finally:
        for fd in (reader, other):
            loop.remove_reader(fd)
            os.close(fd)


def test_loopback_addresses_do_not_exist_by_themselves() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as sock:
            sock.bind((address, 0))
    for address in loopback.ALIASES:
        assert f"ifconfig lo0 alias {address} up\n" in loopback.commands()
        with socket.socket() as sock:
            sock.bind((address, 0))
    with socket.socket() as sock, pytest.raises(OSError) as caught:
        sock.bind(("127.64.0.1", 0))
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_a_socket_has_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as sock:
        with pytest.raises(OSError, match="AF_UNIX path too long"):
            sock.bind("s" * rules.SUN_PATH_BYTES)
        sock.bind("s" * (rules.SUN_PATH_BYTES - 1))


def test_our_modules_believe_that_this_is_macos_and_others_do_not() -> None:
    assert "/private/tmp" in leftovers.SHARED_FOLDERS
    assert sys.platform == "linux"


def test_the_usage_of_a_mac_is_what_its_kernel_says() -> None:
    user, system, _, nice = libsystem.TICKS
    pages = libsystem.PAGES["active"] + libsystem.PAGES["wired"] + libsystem.PAGES["compressor"]
    assert machine_usage() == ((user + system + nice) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def test_the_memory_of_a_process_is_its_footprint_and_the_gpu_has_a_part_of_it() -> None:
    total, *gpu = libsystem.MEMORY.values()
    assert mac_memory.charged(os.getpid()) == mac_memory.Charged(total, sum(gpu))
    assert mac_memory.charged(2**30) is None, "no process has that number"
    assert libsystem.NAMES == [], "every port was given back"


def test_all_threads_of_a_process_have_one_nice_value() -> None:
    done = subprocess.run([sys.executable, "-c", NICE], capture_output=True, text=True, timeout=60, check=True)
    before, main, thread = map(int, done.stdout.split())
    assert main == thread == before + 1
