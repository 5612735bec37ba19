"""What a Mac says about power, heat, memory and traffic, from recorded outputs; and when it is asked."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.observe.parsers.sensors import (
    Sensors,
    parse_ioreg,
    parse_macmon,
    parse_powermetrics,
    parse_traffic,
    parse_wired,
)
from thunderfleet_agent.observe.sensors import ABSENT_SECONDS, FRESH_SECONDS, Reading, SensorReader
from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Host, Output
from thunderfleet_lib.host.parsing import ParseError

MACMON = (
    '{"all_power":0.6468324661254883,"ane_power":0.0,"cpu_power":0.6359732151031494,"ecpu_usage":[2061,0.17],'
    '"gpu_power":0.010859241709113121,"gpu_usage":[503,0.013633215799927711],"ram_power":0.14885640144348145,'
    '"sys_power":10.4955415725708,"temp":{"cpu_temp_avg":23.041261672973633,"gpu_temp_avg":29.44516944885254}}\n'
)
POWERMETRICS = (
    "Machine model: Mac15,14\nCPU Power: 8916 mW\nGPU Power: 9462 mW\nANE Power: 0 mW\n"
    "Combined Power (CPU + GPU + ANE): 18378 mW\nGPU HW active residency: 100.00%\n"
)
PRESSURE = "**** Thermal pressure ****\n\nCurrent pressure level: Heavy\n"
IOREG = '  "PerformanceStatistics" = {"In use system memory (driver)"=0,"Tiler Utilization %"=10,"Device Utilization %"=16}\n'
VM_STAT = (
    "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:       3174400.\nPages wired down:    315751.\n"
)
NETSTAT = (
    "Name       Mtu   Network       Address            Ipkts Ierrs     Ibytes    Opkts Oerrs     Obytes  Coll\n"
    "lo0        16384 <Link#1>                            10     0       1000       10     0       1000     0\n"
    "bridge0    1500  <Link#19>   02:61:f7:66:2a:70     1000     2   10000000     2000     1    5000000     0\n"
    "bridge0    1500  169.254       169.254.1.1         1000     -   10000000     2000     -    5000000     -\n"
)
ANSWERS = {"macmon": MACMON, "vm_stat": VM_STAT, "netstat": NETSTAT}


def test_recorded_outputs_are_read() -> None:
    macmon = parse_macmon(MACMON)
    assert macmon.gpu == pytest.approx(0.0136, abs=1e-4)
    assert macmon.watts["system"] == pytest.approx(10.4955, abs=1e-3)
    assert macmon.celsius == {"cpu": pytest.approx(23.04, abs=0.01), "gpu": pytest.approx(29.45, abs=0.01)}
    assert parse_powermetrics(POWERMETRICS) == Sensors(gpu=1.0, watts={"cpu": 8.916, "gpu": 9.462, "ane": 0.0})
    assert parse_powermetrics(POWERMETRICS + PRESSURE).pressure == "Heavy"
    assert parse_ioreg(IOREG) == Sensors(gpu=0.16)
    assert parse_wired(VM_STAT) == 315751 * 16384
    assert parse_traffic(NETSTAT) == {"lo0": (1000, 1000), "bridge0": (10_000_000, 5_000_000)}


def test_values_that_cannot_be_are_absent() -> None:
    found = parse_macmon('{"gpu_usage":[1,7],"cpu_power":NaN,"gpu_power":-1,"sys_power":"x","temp":[1]}')
    assert found == Sensors()
    assert parse_powermetrics("CPU Power: 99999999 mW\nCurrent pressure level: Nominal\n") == Sensors(pressure="Nominal")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_macmon, parse_powermetrics, parse_ioreg, parse_wired, parse_traffic):
        try:
            parse(text)
        except ParseError:
            continue


class Commands:
    """A Mac with some commands; counts what is run."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.last = asyncio.Event()

    async def run(self, argv: Sequence[str], seconds: float) -> Output | Failure:
        self.asked.append(argv[0])
        if argv[0] == "netstat":
            self.last.set()
        text = self.answers.get(argv[0])
        return Output(argv[0], text) if text is not None else Failure(argv[0], FailureKind.ABSENT, "does not exist")


def reader(commands: Commands, now: list[float], root: bool = False) -> SensorReader:
    return SensorReader(cast(Host, commands), Path("/no/such/folder"), root, clock=lambda: now[0])


def test_numbers_that_no_command_prints_are_absent() -> None:
    """An integer of JSON may be larger than any float, and not every character that counts as a digit is one."""
    assert parse_macmon('{"cpu_power": 1' + "0" * 400 + ', "gpu_power": 2}').watts == {"gpu": 2.0}
    lines = NETSTAT.splitlines()
    odd = " ".join(["en9", "1500", "<Link#9>", "a2:00:00:00:00:09", "1", "0", "\u00b2", "1", "0", "\u00b2", "0"])
    assert parse_traffic("\n".join([*lines, odd])) == parse_traffic(NETSTAT)


async def test_a_scrape_shows_the_sensors_and_the_traffic_of_cables() -> None:
    now = [0.0]
    sensors = reader(Commands(ANSWERS), now)
    await sensors.read()
    metrics = Metrics()
    metrics.show_sensors("m1", sensors.latest, {"bridge0": "a.tb1--b.tb1"})
    value = metrics.registry.get_sample_value
    assert value("thunderfleet_mac_power_watts", {"node": "m1", "part": "system"}) == pytest.approx(10.4955, abs=1e-3)
    assert value("thunderfleet_mac_wired_memory_bytes", {"node": "m1"}) == 315751 * 16384
    assert value("thunderfleet_thunderboltlink_received_bytes_total", {"name": "a.tb1--b.tb1", "node": "m1"}) == 10_000_000
    free, size = sensors.latest().disk or (0, 0)
    assert 0 < free <= size
    now[0] = FRESH_SECONDS + 1
    assert sensors.latest() == Reading()
    assert value("thunderfleet_mac_wired_memory_bytes", {"node": "m1"}) is None
    assert value("thunderfleet_agent_info", {"node": "m1"}) == 1


async def test_missing_commands_are_replaced_and_rarely_asked_for() -> None:
    now = [0.0]
    commands = Commands({"ioreg": IOREG})
    sensors = reader(commands, now)
    await sensors.read()
    assert sensors.latest().sensors.gpu == 0.16
    assert commands.asked == ["macmon", "ioreg", "vm_stat", "netstat"]
    await sensors.read()
    assert commands.asked[4:] == ["ioreg"]
    now[0] = ABSENT_SECONDS
    await sensors.read()
    assert commands.asked[5:] == ["macmon", "ioreg", "vm_stat", "netstat"]


async def test_only_root_asks_powermetrics_and_macmon_wins() -> None:
    commands = Commands({**ANSWERS, "powermetrics": POWERMETRICS + PRESSURE})
    sensors = reader(commands, [0.0], root=True)
    await sensors.read()
    found = sensors.latest().sensors
    assert found.pressure == "Heavy"
    assert found.gpu == pytest.approx(0.0136, abs=1e-4)


async def test_no_command_runs_until_somebody_scrapes() -> None:
    commands = Commands(ANSWERS)
    sensors = reader(commands, [0.0])
    running = asyncio.create_task(sensors.run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert commands.asked == []
    sensors.latest()
    async with asyncio.timeout(30):
        await commands.last.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_changes_of_a_cable_are_counted() -> None:
    metrics = Metrics()
    metrics.changed("m1", "a.tb1--b.tb1")
    metrics.changed("m1", "a.tb1--b.tb1")
    labels = {"name": "a.tb1--b.tb1", "node": "m1"}
    assert metrics.registry.get_sample_value("thunderfleet_thunderboltlink_changes_total", labels) == 2
