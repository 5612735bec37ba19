"""Facts from a machine's commands, and commands that hang, fail or do not exist."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from thunderfleet_kubelet.node.commands import Commands
from thunderfleet_kubelet.node.facts import GIB, go_architecture, meminfo
from thunderfleet_kubelet.node.machine import Reader, look
from thunderfleet_kubelet.node.memory import RETRY_SECONDS, GpuMemory
from thunderfleet_kubelet.serving.metrics import resource_text

from tests.support.processes import exists

SYSCTL = """#!/bin/sh
echo "$@" >> "${{0%/*}}/asked"
bare= code=0
[ "$1" = -n ] && {{ bare=1; shift; }}
for name; do
  case "$name" in
  hw.memsize) value=549755813888;;
  hw.ncpu) value=32;;
  iogpu.wired_limit_mb) value={limit};;
  machdep.cpu.brand_string) value="Apple M3 Ultra";;
  kern.osrelease) value=25.3.0;;
  kern.maxproc) value=4000;;
  kern.memorystatus_vm_pressure_level) value={pressure};;
  *) echo "sysctl: unknown oid '$name'" >&2; code=1; continue;;
  esac
  [ -n "$bare" ] && echo "$value" || echo "$name: $value"
done
exit $code
"""
SW_VERS = "#!/bin/sh\nprintf 'ProductName:\\t\\tmacOS\\nProductVersion:\\t\\t26.3\\nBuildVersion:\\t\\t25D125\\n'\n"


def command(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)


@pytest.fixture
def mac(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    command(folder, "sw_vers", SW_VERS)
    command(folder, "sysctl", SYSCTL.format(limit=0, pressure=1))
    return folder


async def test_a_mac_is_what_its_commands_say(mac: Path, tmp_path: Path) -> None:
    machine = await look(Commands([mac]), tmp_path)
    assert machine.is_mac
    assert machine.architecture == "arm64"
    assert machine.cpus == 32
    assert machine.memory_bytes == 384 * GIB
    assert machine.os_image == "macOS 26.3 25D125"
    assert machine.kernel_version == "25.3.0"
    assert machine.chip == "Apple M3 Ultra"


async def test_a_linux_node_on_a_mac_is_what_its_configuration_says(mac: Path, tmp_path: Path) -> None:
    machine = await look(Commands([mac]), tmp_path, "linux")
    assert (machine.operating_system, machine.is_mac, machine.chip) == ("linux", False, None)
    (tmp_path / "none").mkdir()
    assert (await look(Commands([tmp_path / "none"]), tmp_path, "darwin")).is_mac


async def test_a_machines_own_id_stays(mac: Path, tmp_path: Path) -> None:
    first = await look(Commands([mac]), tmp_path)
    second = await look(Commands([mac]), tmp_path)
    assert first.machine_id == second.machine_id != ""


async def test_a_configured_wired_limit(mac: Path, tmp_path: Path) -> None:
    command(mac, "sysctl", SYSCTL.format(limit=491520, pressure=1))
    assert (await look(Commands([mac]), tmp_path)).memory_bytes == 480 * GIB


@pytest.fixture
def metal(tmp_path: Path) -> Path:
    """A folder with an MLX that says what the file ``bytes`` has, and writes a dot into ``asked`` each time."""
    package = tmp_path / "python" / "mlx"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core.py").write_text(
        "from pathlib import Path\nHERE = Path(__file__).parents[1]\n"
        "with (HERE / 'asked').open('a') as file:\n    file.write('.')\n"
        "def device_info():\n    return {'max_recommended_working_set_size': int((HERE / 'bytes').read_text())}\n"
    )
    return package.parent


def asked(metal: Path) -> int:
    return len((metal / "asked").read_text())


async def test_memory_is_what_mlx_says_and_is_asked_again_after_the_limit_changed(
    mac: Path, metal: Path, tmp_path: Path
) -> None:
    (metal / "bytes").write_text(str(430 * GIB))
    commands = Commands([mac], python_path=[metal])
    gpu = GpuMemory(commands)
    assert (await look(commands, tmp_path, gpu=gpu)).memory_bytes == 430 * GIB
    reader = Reader(commands, mac=True, gpu=gpu)
    assert (await reader.read()).memory_bytes == 430 * GIB
    assert asked(metal) == 1, "the answer of MLX is kept"

    (metal / "bytes").write_text(str(480 * GIB))
    command(mac, "sysctl", SYSCTL.format(limit=491520, pressure=1))
    assert (await reader.read()).memory_bytes == 480 * GIB

    # A limit that cannot be read changes nothing.
    command(mac, "sysctl", "#!/bin/sh\nexit 1\n")
    assert (await reader.read()).memory_bytes == 480 * GIB
    assert asked(metal) == 2


async def test_memory_is_estimated_while_mlx_fails_and_mlx_is_asked_again(
    mac: Path, metal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (metal / "bytes").write_text("many")
    now = 0.0
    gpu = GpuMemory(Commands([mac], python_path=[metal]), lambda: now)
    assert await gpu.read(0) == 384 * GIB
    assert "so it is estimated" in caplog.text and "invalid literal" in caplog.text
    (metal / "bytes").write_text(str(430 * GIB))
    now = RETRY_SECONDS - 1
    assert await gpu.read(0) == 384 * GIB
    now = RETRY_SECONDS
    assert await gpu.read(0) == 430 * GIB


async def test_a_kubelet_that_starts_uses_the_recorded_answer_and_asks_later(
    mac: Path, metal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0

    def starting() -> GpuMemory:
        return GpuMemory(Commands([mac], python_path=[metal]), lambda: now, tmp_path)

    (metal / "bytes").write_text(str(430 * GIB))
    assert await starting().read(0) == 430 * GIB
    (metal / "bytes").write_text(str(440 * GIB))
    gpu = starting()
    assert await gpu.read(0) == 430 * GIB
    assert asked(metal) == 1, "pods would wait for MLX"
    (metal / "bytes").write_text("many")
    now = RETRY_SECONDS
    assert await gpu.read(0) == 430 * GIB, "an estimate is worse"
    assert "so the last value stays in use" in caplog.text
    (metal / "bytes").write_text(str(440 * GIB))
    now = 2 * RETRY_SECONDS
    assert await gpu.read(0) == 440 * GIB
    assert await starting().read(0) == 440 * GIB
    assert asked(metal) == 3

    # The limit was changed while no kubelet ran.
    (metal / "bytes").write_text(str(480 * GIB))
    assert await starting().read(491520) == 480 * GIB


@pytest.mark.parametrize(
    "recorded",
    ["", "[" * 4096, "[]", '{"memory": 1, "limitMB": 0, "gpu": 1}', '{"memory": %d, "limitMB": 0, "gpu": %d}', "\\xff"],
    ids=["empty", "deep", "a list", "of another Mac", "more than the Mac has", "no JSON"],
)
async def test_a_record_that_cannot_be_right_is_ignored(recorded: str, mac: Path, metal: Path, tmp_path: Path) -> None:
    text = recorded % (512 * GIB, 513 * GIB) if "%" in recorded else recorded
    (tmp_path / "gpu-memory.json").write_text(text)
    (metal / "bytes").write_text(str(430 * GIB))
    assert await GpuMemory(Commands([mac], python_path=[metal]), root=tmp_path).read(0) == 430 * GIB


async def test_mlx_never_gives_more_memory_than_the_mac_has(mac: Path, metal: Path) -> None:
    (metal / "bytes").write_text(str(600 * GIB))
    assert await GpuMemory(Commands([mac], python_path=[metal])).read(0) == 512 * GIB


async def test_a_hung_command_is_given_up_and_ended(mac: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pid = tmp_path / "pid"
    pid.touch()
    command(mac, "sysctl", f"#!/bin/sh\necho $$ >> {pid}\nexec sleep 600\n")
    # Again if no command came as far as to say its number before its time was over.
    while not pid.read_text():
        machine = await look(Commands([mac], seconds=0.2), tmp_path)
        assert machine.is_mac
        assert machine.cpus == os.cpu_count()
    assert "`sysctl hw.ncpu iogpu.wired_limit_mb` did not answer within 0.2 s" in caplog.text
    assert not any(exists(int(number)) for number in pid.read_text().split())


async def test_a_hung_sw_vers_is_still_a_mac(mac: Path, tmp_path: Path) -> None:
    command(mac, "sw_vers", "#!/bin/sh\nexec sleep 600\n")
    machine = await look(Commands([mac], seconds=0.2), tmp_path)
    assert machine.is_mac
    assert machine.os_image == "macOS"


@pytest.mark.skipif(os.path.exists("/usr/bin/sw_vers"), reason="this machine is a Mac")
async def test_without_sw_vers_it_is_linux(tmp_path: Path) -> None:
    machine = await look(Commands([tmp_path]), tmp_path)
    assert machine.operating_system == "linux"
    assert machine.memory_bytes > 0
    assert machine.chip is None


async def test_nothing_of_our_environment_reaches_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_KUBELET", "1")
    command(tmp_path / "bin", "show", "#!/bin/sh\nenv\n")
    said = await Commands([tmp_path / "bin"]).output("show")
    assert said is not None
    assert "SECRET_OF_THE_KUBELET" not in said


async def test_a_child_that_left_its_group_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaver = "import os, time\nif os.fork():\n    time.sleep(600)\nos.setsid()\nprint(os.getpid(), file=open('child', 'w'))\n"
    monkeypatch.chdir(tmp_path)
    command(tmp_path / "bin", "hangs", f"#!{sys.executable} -S\n{leaver}time.sleep(600)\n")
    child = tmp_path / "child"
    child.touch()
    # Again if its time was over before it had left its group.
    while not child.read_text():
        async with asyncio.timeout(60):
            assert await Commands([tmp_path / "bin"], 2.0).output("hangs") is None
    os.kill(int(child.read_text()), 9)


async def test_a_number_that_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command(tmp_path / "bin", "sysctl", "#!/bin/sh\necho many\n")
    assert await Commands([tmp_path / "bin"]).number("sysctl", "-n", "hw.ncpu") is None
    assert "'many' is not a number" in caplog.text


async def test_a_round_starts_one_sysctl(mac: Path, metal: Path) -> None:
    (metal / "bytes").write_text(str(430 * GIB))
    commands = Commands([mac], python_path=[metal])
    reader = Reader(commands, mac=True, gpu=GpuMemory(commands))
    await reader.read()
    (mac / "asked").unlink()
    assert (await reader.read()).memory_bytes == 430 * GIB
    assert (mac / "asked").read_text() == "kern.memorystatus_vm_pressure_level iogpu.wired_limit_mb\n"


async def test_a_variable_that_a_mac_does_not_have_costs_no_other(mac: Path, caplog: pytest.LogCaptureFixture) -> None:
    commands = Commands([mac])
    assert await commands.variables("no.such", "hw.ncpu", "machdep.cpu.brand_string") == {"hw.ncpu": 32}
    assert "unknown oid 'no.such'" in caplog.text
    command(mac, "sysctl", "#!/bin/sh\necho hw.ncpu: 32\nexec sleep 600\n")
    assert await Commands([mac], seconds=0.2).variables("hw.ncpu") == {}


@pytest.mark.parametrize(("level", "short"), [(1, False), (2, False), (4, True)])
async def test_memory_pressure_is_macos_word(mac: Path, tmp_path: Path, level: int, short: bool) -> None:
    command(mac, "sysctl", SYSCTL.format(limit=0, pressure=level))
    readings = await Reader(Commands([mac]), mac=True).read()
    assert readings.memory_short is short


def test_meminfo() -> None:
    assert meminfo("MemTotal:  2 kB\nHugePages_Total: 0\nMemAvailable:   1 kB\n") == {"MemTotal": 2048, "MemAvailable": 1024}


def test_architectures_are_gos() -> None:
    assert [go_architecture(word) for word in ("x86_64", "aarch64", "arm64")] == ["amd64", "arm64", "arm64"]


def test_top_shows_what_the_machine_uses() -> None:
    values = dict(line.split() for line in resource_text([]).decode().splitlines() if not line.startswith("#"))
    assert float(values["resource_scrape_error"]) == 0
    assert float(values["node_cpu_usage_seconds_total"]) > 0
    assert float(values["node_memory_working_set_bytes"]) > 1024**2
