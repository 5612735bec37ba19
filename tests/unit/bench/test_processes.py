"""Processes of a cluster: which belong to it, which program each one is, and its figures from /proc."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.bench import processes
from tests.bench.processes import Process, Usage


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/opt/bin/python /opt/bin/thunderfleet-kubelet run --root /x", "kubelet"),
        ("python -c import sys; from thunderfleet_kubelet.cli import main; sys.exit(main()) join", "kubelet"),
        ("python -m thunderfleet_kubelet.shim /x/containers/1", "shim"),
        ("/opt/python -I -S /x/thunderfleet_kubelet/shim /x/containers/1", "shim"),
        ("python /i/bin/thunderfleet-agent run --interval 30", "agent"),
        ("python /i/bin/thunderfleet-operator run", "operator"),
        ("python /i/bin/thunderfleet-runner serve", "supervisor"),
        ("python /i/bin/thunderfleet-runner size /models/x -o json", ""),
        ("python -P -m thunderfleet_runner.rank --group tiny --rank 0 --attempt 1", "rank"),
        ("python -m thunderfleet_localcluster.supervisor up.json", "local cluster"),
        ("/cache/kube-apiserver --secure-port=6443", "control plane"),
        ("vim kubelet.txt", ""),
    ],
)
def test_program_of_a_command_line(command: str, program: str) -> None:
    assert processes.program_of(command) == program


def test_descendants_are_those_of_one_cluster_only() -> None:
    tree = [Process(1, 0, "init"), Process(2, 1, "keeper"), Process(3, 2, "kubelet"), Process(4, 3, "shim")]
    others = [Process(5, 1, "another keeper"), Process(6, 5, "another kubelet")]
    assert sorted(found.pid for found in processes.descendants(2, [*others, *tree])) == [2, 3, 4]


def test_cpu_time_has_the_ended_children_in_it() -> None:
    stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 2 3 4 100 50 20 30 20 0 1 0 99"
    assert processes.parse_cpu_seconds(stat, 100) == pytest.approx(2.0)


def test_memory_is_in_bytes() -> None:
    text = "00400000-7ffc [rollup]\nRss:    2048 kB\nPss:    1024 kB\nPss_Anon: 7 kB\nShared_Clean: 9 kB\n"
    more = "Anonymous: 512 kB\nSwap: 3 kB\n"
    assert processes.parse_memory(text + more) == (2048 * 1024, 1024 * 1024, 515 * 1024)


def test_missing_memory_is_an_error() -> None:
    with pytest.raises(ValueError, match="not have all of Rss, Pss, Anonymous, Swap"):
        processes.parse_memory("Rss: 1 kB\n")


def test_share_of_a_core_of_those_that_lived_all_the_time() -> None:
    before = {1: Usage(0, 0, 10.0), 2: Usage(0, 0, 1.0)}
    assert processes.idle_share(before, {1: Usage(0, 0, 10.6), 3: Usage(0, 0, 5.0)}, 60.0) == {1: pytest.approx(1.0)}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_process_is_measured() -> None:
    used = processes.usage(os.getpid())
    assert used is not None
    assert used.rss >= used.pss > 1_000_000
    assert used.cpu_seconds > 0
    assert any(found.pid == os.getpid() for found in processes.all_processes())


MAPS = """00400000-00402000 r--p 00003000 fe:00 77    /usr/bin/python3 (deleted)
00402000-00403000 rw-p 00000000 00:00 0
7ffc0000-7ffc1000 r-xp 00000000 00:00 0    [vdso]
"""


def test_pages_of_files_are_those_in_memory_and_not_changed() -> None:
    assert processes.parse_mappings(MAPS) == [(0x400000, 0x402000, ("fe:00", "77"), 0x3000)]
    here, of_file = 1 << 63, 1 << 61
    found = processes.resident_pages([here | of_file | 5, here, of_file, here | of_file], ("fe:00", "77"), 3)
    assert list(found) == [(("fe:00", "77"), 3), (("fe:00", "77"), 6)]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_together_two_processes_share_files_and_nothing_else() -> None:
    """Of the same Python: more than the private memory of both, and less than all memory of both."""
    command = [sys.executable, "-c", "block = bytes(range(256)) * 65536; print(len(block), flush=True); input()"]
    with ExitStack() as running:
        pids = []
        for _ in range(2):
            child = running.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert child.stdout is not None and child.stdout.readline() == b"16777216\n"
            pids.append(child.pid)
        used = [one for pid in pids if (one := processes.usage(pid))]
        both = processes.together(pids)
        alone = [processes.together([pid]) for pid in pids]
    assert both is not None and all(one is not None for one in alone)
    files = [one.rss - one.private for one in used]
    assert all(one.private > 16 * 2**20 for one in used) and min(files) > 2**20
    assert both == pytest.approx(sum(one.private for one in used) + max(files), abs=2**20)
    assert alone == [pytest.approx(one.rss, abs=2**19) for one in used]
    assert processes.together([*pids, 2**22 + 1]) is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_process_that_has_gone_has_no_usage() -> None:
    assert processes.usage(2**22 + 1) is None
