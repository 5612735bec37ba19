"""What ``thunderfleet doctor`` makes of the output of commands, and of the conditions of a cluster."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_cli.doctor.checks import cluster, mac, network, power, security, system
from thunderfleet_cli.doctor.checks.check import Answers, Argv, Check, State
from thunderfleet_crds.reasons import WITHOUT_RDMA, Reason
from thunderfleet_lib.host.gpu_memory import COMMAND as GPU_MEMORY
from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Output
from thunderfleet_lib.rdma.parse import DEVICES_COMMAND, STATUS_COMMAND

Json = dict[str, Any]

PYTHON = "/opt/thunderfleet/bin/python3.13"
APPLICATION = security.application(PYTHON)
CUSTOM = """\
Battery Power:
 Sleep On Power Button 1
 sleep                1
 hibernatefile        /var/vm/sleepimage
AC Power:
 Sleep On Power Button 1
 autorestart          0
 hibernatefile        /var/vm/sleepimage
 sleep                10
 womp                 1
"""
LIVE = """\
System-wide power settings:
Currently in use:
 standby              1
 sleep                10 (sleep prevented by powerd)
"""
INTERFACES = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=567<RXCSUM,TXCSUM,VLAN_MTU,TSO4,TSO6,AV,CHANNEL_IO>
\tether 02:00:00:00:00:01
\tmedia: autoselect (10Gbase-T <full-duplex>)
\tstatus: active
en1: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:02
\tmedia: autoselect
\tstatus: active
en2: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:03
\tmedia: autoselect <full-duplex>
\tstatus: active
"""
BRIDGE = """\
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:04
\tConfiguration:
\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0
\tmember: en2 flags=3<LEARNING,DISCOVER>
\t        ifmaxaddr 0 port 11 priority 0 path cost 0
\tstatus: active
"""
PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 02:00:00:00:00:01

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 02:00:00:00:00:02

Hardware Port: Thunderbolt 1
Device: en2
Ethernet Address: 02:00:00:00:00:03

VLAN Configurations
===================
"""
SERVICES = """\
An asterisk (*) denotes that a network service is disabled.
(1) Ethernet
(Hardware Port: Ethernet, Device: en0)

(2) Thunderbolt Bridge
(Hardware Port: Thunderbolt Bridge, Device: bridge0)

(3) Cable
(Hardware Port: Thunderbolt 1, Device: en2)

"""
BARE = SERVICES.partition("(3)")[0]
DEVICES = """\
    device                 node GUID
    ------              ----------------
    rdma_en2            0000000000000001
"""
DISK = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/disk3s1s1 971350180 12185156 {free} 2% /\n"
HOT = """\
2026-08-20 05:08:37 -0700 CPU Power notify
\tCPU_Scheduler_Limit \t= 100
\tCPU_Available_CPUs \t= 12
\tCPU_Speed_Limit \t= 62
"""
HEALTHY: Mapping[Argv, str] = {
    STATUS_COMMAND: "enabled\n",
    DEVICES_COMMAND: DEVICES,
    power.CUSTOM: CUSTOM.replace("autorestart          0", "autorestart          1").replace("10\n", "0\n"),
    power.LIVE: LIVE,
    power.THERM: "Note: No thermal warning level has been recorded\nNote: No performance warning level has been recorded\n",
    security.GLOBAL: "Firewall is disabled. (State = 0)\n",
    security.BLOCK_ALL: "Firewall has block all state set to disabled.\n",
    APPLICATION: "The application is not part of the firewall \n",
    security.FILEVAULT: "FileVault is Off.\n",
    system.VERSION: "26.3\n",
    system.DISK: DISK.format(free=702345678),
    system.CLOCK: "+0.024490 +/- 0.016059 time.apple.com 17.253.2.43\n",
    system.MEMORY: "0\n103079215104\n",
    GPU_MEMORY: "83886080000\n",
    network.ROUTE: "   route to: default\ndestination: default\n    gateway: 192.168.64.1\n  interface: en0\n",
    network.INTERFACES: INTERFACES,
    network.PORTS: PORTS,
    network.SERVICES: SERVICES,
}
ON = {security.GLOBAL: "Firewall is enabled. (State = 1)\n"}


def answers(changes: Mapping[Argv, str | Failure] | None = None) -> Answers:
    """What a healthy Mac prints, with changes."""
    texts: dict[Argv, str | Failure] = {**HEALTHY, **(changes or {})}
    return {argv: Output(" ".join(argv), said) if isinstance(said, str) else said for argv, said in texts.items()}


def look(name: str, changes: Mapping[Argv, str | Failure] | None = None) -> Check:
    """One check of a Mac."""
    return next(check for check in mac.checks(answers(changes), PYTHON) if check.name == name)


def failed(argv: Argv, kind: FailureKind, message: str, error: str = "") -> Failure:
    return Failure(" ".join(argv), kind, message, error=error)


def test_a_healthy_mac_passes_all_checks_but_the_one_that_cannot_be_made() -> None:
    found = {check.name: (check.state, check.finding) for check in mac.checks(answers(), PYTHON)}
    assert {name for name, (state, _) in found.items() if state is not State.OK} == {"local-network"}
    assert found["local-network"][0] is State.UNKNOWN and "System Settings" in found["local-network"][1]
    assert set(mac.questions(PYTHON)) == set(HEALTHY)
    assert all(0 < seconds <= 20 for seconds in mac.questions(PYTHON).values())


@pytest.mark.parametrize(
    ("name", "changes", "state", "text", "fix"),
    [
        ("sleep", {power.CUSTOM: CUSTOM}, State.WARNING, "sleeps after 10 min", "sudo pmset -c sleep 0"),
        ("sleep", {power.CUSTOM: CUSTOM, power.LIVE: " SleepDisabled\t\t1\n" + LIVE}, State.OK, "sleep is disabled", ""),
        ("sleep", {power.CUSTOM: CUSTOM, power.LIVE: " SleepDisabled        0\n" + LIVE}, State.WARNING, "10 min", "sleep 0"),
        (
            "restart-after-power-loss",
            {power.CUSTOM: CUSTOM},
            State.WARNING,
            "stays off after a loss of power",
            "sudo pmset -c autorestart 1",
        ),
        (
            "restart-after-power-loss",
            {power.CUSTOM: CUSTOM.replace(" autorestart          0\n", "")},
            State.OK,
            "has a battery",
            "",
        ),
        (
            "thermal",
            {power.THERM: HOT},
            State.WARNING,
            "to 62 %",
            "",
        ),
        ("firewall", ON, State.WARNING, "has no rule for", f"--add {PYTHON} && sudo"),
        (
            "firewall",
            {**ON, APPLICATION: f"Incoming connection to {PYTHON} is blocked \n"},
            State.FAILURE,
            "refuses connections",
            f"--unblockapp {PYTHON}",
        ),
        ("firewall", {**ON, APPLICATION: f"Incoming connection to {PYTHON} is permitted \n"}, State.OK, "lets other Macs", ""),
        (
            "firewall",
            {**ON, security.BLOCK_ALL: "Firewall has block all state set to enabled.\n"},
            State.FAILURE,
            "blocks all",
            "--setblockall off",
        ),
        ("firewall", {**ON, security.BLOCK_ALL: "Block all DISABLED!\n"}, State.WARNING, "has no rule", "--add"),
        (
            "firewall",
            {security.GLOBAL: "Firewall is blocking all non-essential incoming connections. (State = 2)\n"},
            State.FAILURE,
            "blocks all",
            "--setblockall off",
        ),
        ("filevault", {security.FILEVAULT: "FileVault is On.\n"}, State.WARNING, "waits for a password", ""),
        (
            "filevault",
            {security.FILEVAULT: "FileVault is Off, but will be enabled after the next restart.\n"},
            State.WARNING,
            "after the next restart",
            "",
        ),
        (
            "filevault",
            {security.FILEVAULT: "FileVault is On.\nEncryption in progress: Percent completed = 12\n"},
            State.WARNING,
            "Percent completed = 12",
            "",
        ),
        ("macos", {system.VERSION: "15.7.1\n"}, State.WARNING, "needs macOS 26.3", "softwareupdate"),
        ("macos", {system.VERSION: "26.3.1\n"}, State.OK, "macOS 26.3.1", ""),
        ("macos", {system.VERSION: "26.2\n"}, State.WARNING, "needs macOS 26.3", "softwareupdate"),
        ("rdma", {system.VERSION: "26.2\n"}, State.WARNING, "runs macOS 26.2; this Mac cannot use RDMA", ""),
        ("macos", {system.VERSION: "13.7\n"}, State.FAILURE, "MLX needs macOS 14.0", "softwareupdate"),
        ("rdma", {STATUS_COMMAND: "disabled\n"}, State.FAILURE, "run `rdma_ctl enable`", ""),
        (
            "rdma",
            {STATUS_COMMAND: failed(STATUS_COMMAND, FailureKind.ABSENT, "does not exist")},
            State.WARNING,
            "`rdma_ctl status` does not exist; this Mac cannot use RDMA",
            "",
        ),
        (
            "rdma",
            {DEVICES_COMMAND: failed(DEVICES_COMMAND, FailureKind.TIMED_OUT, "did not answer within 10 s")},
            State.FAILURE,
            "reboot this Mac",
            "sudo shutdown -r now",
        ),
        (
            "rdma",
            {DEVICES_COMMAND: failed(DEVICES_COMMAND, FailureKind.FAILED, "exited with code 255", "No IB devices found")},
            State.WARNING,
            "needs a Mac with Thunderbolt 5",
            "",
        ),
        (
            "disk",
            {system.DISK: DISK.format(free=97135017)},
            State.FAILURE,
            "(9 %)",
            "",
        ),
        (
            "disk",
            {system.DISK: DISK.format(free=145702526)},
            State.WARNING,
            "(14 %)",
            "",
        ),
        (
            "clock",
            {system.CLOCK: "2026-04-19 19:45:00.123456 (-0700) +13.480000 +/- 0.045000 time.apple.com 17.253.84.253\n"},
            State.WARNING,
            "13.5 s behind",
            "sudo sntp -sS time.apple.com",
        ),
        ("clock", {system.CLOCK: "-90.5 +/- 0.1 time.apple.com 17.253.84.253\n"}, State.FAILURE, "90.5 s ahead", "sntp -sS"),
        ("clock", {system.CLOCK: "-90.5 +/- 90.0 time.apple.com 17.253.84.253\n"}, State.OK, "accurate to 180 s", ""),
        ("gpu-memory", {system.MEMORY: "96000\n103079215104\n"}, State.WARNING, "less than 4096 MB", "--gpu-memory default"),
        ("gpu-memory", {system.MEMORY: "90000\n103079215104\n"}, State.OK, "90000 MB of 98304 MB, until the next", ""),
        (
            "gpu-memory",
            {},
            State.OK,
            "may wire 80000 MB of 98304 MB, the default of macOS; `sudo thunderfleet doctor --fix --gpu-memory max`",
            "",
        ),
        ("gpu-memory", {GPU_MEMORY: "96636764160\n"}, State.OK, "may wire 92160 MB of 98304 MB, the default of macOS", ""),
        ("gpu-memory", {GPU_MEMORY: "0\n"}, State.OK, "may wire 73728 MB of 98304 MB", ""),
        ("ethernet", {network.INTERFACES: INTERFACES.replace("10Gbase-T", "100baseTX")}, State.WARNING, "at 100 Mb/s", ""),
        (
            "ethernet",
            {network.INTERFACES: INTERFACES.replace("10Gbase-T", "2500Base-T").replace("mtu 1500", "mtu 9000")},
            State.OK,
            "at 2500 Mb/s with MTU 9000",
            "",
        ),
        (
            "ethernet",
            {network.INTERFACES: INTERFACES.replace("mtu 1500", "mtu 1280")},
            State.WARNING,
            "1280",
            "-setMTU en0 1500",
        ),
        ("ethernet", {network.INTERFACES: INTERFACES.replace("10Gbase-T", "1000baseT")}, State.OK, "at 1000 Mb/s", ""),
        ("disk", {system.DISK: DISK.format(free=97135018)}, State.WARNING, "(10 %)", ""),
        ("ethernet", {network.ROUTE: "  interface: en1\n"}, State.WARNING, "en1 (Wi-Fi)", ""),
        (
            "ethernet",
            {
                network.ROUTE: failed(
                    network.ROUTE, FailureKind.FAILED, "exited with code 1", "route: writing to routing socket: not in table"
                )
            },
            State.WARNING,
            "no default route",
            "",
        ),
        (
            "thunderbolt-bridge",
            {network.INTERFACES: INTERFACES + BRIDGE, network.SERVICES: BARE},
            State.FAILURE,
            "en2 of this Mac is a member of bridge0",
            "sudo networksetup -createnetworkservice 'Thunderfleet Thunderbolt 1' 'Thunderbolt 1' && "
            "sudo ifconfig bridge0 deletem en2 && sudo networksetup -setnetworkserviceenabled 'Thunderbolt Bridge' off",
        ),
    ],
)
def test_what_is_wrong_is_found_with_its_fix(
    name: str, changes: Mapping[Argv, str | Failure], state: State, text: str, fix: str
) -> None:
    check = look(name, changes)
    assert check.state is state, check
    assert text in check.finding
    assert fix in check.fix and bool(fix) == bool(check.fix)


@pytest.mark.parametrize(
    ("name", "argv", "text"),
    [
        ("sleep", power.CUSTOM, "AC Power:\n sleep                never\n"),
        ("sleep", power.CUSTOM, "AC Power:\n womp                 1\n"),
        ("sleep", power.CUSTOM, "UPS Power:\n sleep                1\n"),
        ("sleep", power.CUSTOM, "pmset: what is this\n"),
        ("restart-after-power-loss", power.CUSTOM, "AC Power:\n sleep                1\n"),
        ("thermal", power.THERM, "Note: No thermal warning level has been recorded\nThermal warning level = 2\n"),
        ("firewall", security.GLOBAL, "Firewall settings cannot be modified from command line on managed Mac computers.\n"),
        ("filevault", security.FILEVAULT, "Error: FileVault is busy.\n"),
        ("macos", system.VERSION, "Tahoe\n"),
        ("rdma", STATUS_COMMAND, "rdma is neither\n"),
        ("rdma", DEVICES_COMMAND, "no table\n"),
        ("disk", system.DISK, "Filesystem 512-blocks Used\n"),
        ("clock", system.CLOCK, "sntp: Exchange failed: Timeout\n"),
        ("gpu-memory", system.MEMORY, "0\n"),
        ("gpu-memory", system.MEMORY, "0\n1048575\n"),
        ("gpu-memory", GPU_MEMORY, "null\n"),
        ("ethernet", network.ROUTE, "   route to: default\n"),
        ("ethernet", network.INTERFACES, INTERFACES.replace(" (10Gbase-T <full-duplex>)", "")),
        ("ethernet", network.INTERFACES, "garbage\n"),
        ("thunderbolt-bridge", network.PORTS, "garbage\n"),
    ],
)
def test_what_is_not_understood_is_unknown(name: str, argv: Argv, text: str) -> None:
    check = look(name, {argv: text})
    assert check.state is State.UNKNOWN and check.repair is None, check
    assert f"`{' '.join(argv)}`" in check.finding


def test_unknown_output_is_quoted_with_its_first_line() -> None:
    check = look("clock", {system.CLOCK: "\nsntp: Exchange failed: Timeout\nmore\n"})
    assert check.finding == "`sntp time.apple.com` printed unexpected output: sntp: Exchange failed: Timeout"


@pytest.mark.parametrize("argv", list(HEALTHY), ids=" ".join)
def test_a_command_that_fails_is_never_ok(argv: Argv) -> None:
    """Nothing printed, an error, half of it: each check that needs the command says so, and the others are as before."""
    if argv in (APPLICATION, security.BLOCK_ALL):
        before: Mapping[Argv, str | Failure] = ON
    else:
        before = {}
    healthy = {check.name: check for check in mac.checks(answers(before), PYTHON)}
    for damage in (failed(argv, FailureKind.FAILED, "exited with code 5"), "", HEALTHY[argv].rstrip("\n"), "\x00\x01\n"):
        changed = [check for check in mac.checks(answers({**before, argv: damage}), PYTHON) if check != healthy[check.name]]
        assert changed
        assert {check.state for check in changed} == {State.UNKNOWN}


@given(st.sampled_from(list(HEALTHY)), st.text(max_size=300))
def test_any_output_has_a_result(argv: Argv, text: str) -> None:
    checks = mac.checks(answers({**ON, argv: text}), PYTHON)
    assert len({check.name for check in checks}) == len(checks) == 13
    assert all(check.finding and "\n" not in check.finding for check in checks)


# --- a cluster ---------------------------------------------------------------------------------------------------------------


def item(name: str, *conditions: tuple[str, str, str, str], **labels: str) -> Json:
    """An object with conditions: type, status, reason, message."""
    found = [dict(zip(("type", "status", "reason", "message"), one, strict=True)) for one in conditions]
    os = {f"kubernetes.io/{name}": value for name, value in labels.items()}
    return {"metadata": {"name": name, "labels": os}, "status": {"conditions": found}}


def test_a_bridge_is_repaired_so_that_it_lasts_and_only_where_nothing_else_does_or_needs_it() -> None:
    bridged = {network.INTERFACES: INTERFACES + BRIDGE, network.SERVICES: BARE}
    repair = look("thunderbolt-bridge", bridged).repair
    assert repair is not None and repair.undo == (
        ("networksetup", "-setnetworkserviceenabled", "Thunderbolt Bridge", "on"),
        ("ifconfig", "bridge0", "addm", "en2"),
        ("networksetup", "-setnetworkserviceenabled", "Thunderfleet Thunderbolt 1", "off"),
        ("networksetup", "-removenetworkservice", "Thunderfleet Thunderbolt 1"),
    )
    assert "-createnetworkservice" not in look("thunderbolt-bridge", {**bridged, network.SERVICES: SERVICES}).fix
    bare = look("thunderbolt-bridge", {network.SERVICES: BARE})
    assert (
        bare.state is State.WARNING
        and bare.repair is not None
        and "this Mac has no network service for Thunderbolt 1, so" in bare.finding
    )
    over_it = look("thunderbolt-bridge", {**bridged, network.ROUTE: "  interface: bridge0\n"})
    assert over_it.repair is None and over_it.fix and "connect this Mac to a LAN first" in over_it.finding
    managed = next(check for check in mac.checks(answers(bridged), PYTHON, managed=True) if check.name == "thunderbolt-bridge")
    assert managed.state is State.FAILURE and not managed.fix and managed.repair is None
    assert "`kubectl describe node` shows why" in managed.finding


READY = ("Ready", "True", "KubeletReady", "kubelet is posting ready status")


def found(nodes: list[Json], profiles: list[Json], links: list[Json]) -> list[tuple[str, str, str, str, str]]:
    objects = cluster.Objects(nodes, profiles, links)
    return [(one.subject, one.name, one.state.value, one.reason, one.fix) for one in cluster.checks(objects)]


def test_conditions_of_macs_are_shown_as_they_are() -> None:
    message = "RDMA is disabled on this Mac: start this Mac in Recovery"
    bridged = "en2 is a member of bridge0: run `sudo thunderfleet doctor --fix` on this Mac, and `sudo x` to keep it"
    profile = item(
        "studio-1",
        ("RDMAReady", "False", Reason.RDMA_DISABLED, message),
        ("BridgeFree", "False", Reason.BRIDGE_MEMBER, bridged),
        ("InventoryComplete", "Unknown", Reason.COMMAND_FAILED, "`sysctl` failed"),
        ("Quarantined", "False", "", ""),
        ("BenchmarksFresh", "False", Reason.DISABLED, "off"),
    )
    assert found([item("studio-1", READY)], [profile], []) == [
        ("studio-1", "InventoryComplete", "unknown", "CommandFailed", ""),
        ("studio-1", "RDMAReady", "failure", "RDMADisabled", ""),
        ("studio-1", "BridgeFree", "failure", "BridgeMember", "sudo thunderfleet doctor --fix && sudo x"),
        ("studio-1", "Quarantined", "ok", "", ""),
        ("studio-1", "BenchmarksFresh", "unknown", "Disabled", ""),
    ]
    checks = cluster.checks(cluster.Objects([item("studio-1", READY)], [profile], []))
    assert {"RDMAReady": message, "BridgeFree": bridged}.items() <= {one.name: one.finding for one in checks}.items()


def test_macs_that_cannot_use_rdma_and_macs_in_quarantine() -> None:
    old = item("mini", ("RDMAReady", "False", Reason.NO_DEVICES, "needs Thunderbolt 5"))
    sick = item("studio", ("Quarantined", "True", Reason.STACK_HUNG, "reboot"))
    assert found([item("mini", READY), item("studio", READY)], [old, sick], []) == [
        ("mini", "RDMAReady", "warning", "NoDevices", ""),
        ("studio", "Quarantined", "failure", "StackHung", ""),
    ]


def test_a_node_that_is_not_ready_or_has_no_agent() -> None:
    gone = item("studio-1", ("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))
    nodes = [gone, item("studio-2", READY), item("linux-1", READY, os="linux"), item("new")]
    assert found(nodes, [], []) == [
        ("studio-1", "Ready", "failure", "NodeStatusUnknown", ""),
        ("studio-2", "agent", "unknown", "", ""),
        ("new", "Ready", "failure", "", ""),
    ]
    (stopped,) = cluster.checks(cluster.Objects([gone], [], []))
    assert stopped.finding == "Kubelet stopped posting node status: check that the machine is on and that its kubelet runs"
    reported = item("studio-1", ("Ready", "False", "RuntimeNotReady", "the disk cannot be written"))
    (own,) = cluster.checks(cluster.Objects([reported], [], []))
    assert own.finding == "the disk cannot be written", "the kubelet runs, and says itself what is wrong"


@pytest.mark.parametrize(
    ("version", "runtime", "resources", "warned"),
    [
        ("v1.36.3-thunderfleet.0.9", "process://0.9", {"memory": "8Gi"}, True),
        ("v1.36.3-thunderfleet.1.0", "process://1.0+gpu-memory", {"memory": "8Gi", "thunderfleet.io/gpu-memory": "8Gi"}, False),
        ("v1.36.3-thunderfleet.0.9", "process://0.9", {"memory": "8Gi", "thunderfleet.io/gpu-memory": "8Gi"}, True),
        ("v1.36.3", "containerd://2", {"memory": "8Gi"}, False),
    ],
)
def test_a_kubelet_of_ours_that_is_too_old_for_quotas_of_gpu_memory(
    version: str, runtime: str, resources: Json, warned: bool
) -> None:
    node = item("studio-1", READY)
    node["status"] |= {
        "allocatable": resources,
        "nodeInfo": {"kubeletVersion": version, "containerRuntimeVersion": runtime},
    }
    warnings = [one for one in cluster.checks(cluster.Objects([node], [], [])) if one.name == "gpu-memory"]
    assert [one.state.value for one in warnings] == ["warning"] * warned


CHANGED, LATER = "2026-03-01T12:00:00Z", "2026-03-01T12:05:00Z"


def cable(*conditions: tuple[str, str, str, str], measured: str = "", transport: str = "RDMA") -> Json:
    """A ThunderboltLink between a and b that last changed at CHANGED; ``measured``: when both directions were benchmarked."""
    link = item("a--b", *conditions)
    for one in link["status"]["conditions"]:
        one["lastTransitionTime"] = CHANGED
    link["spec"] = {"a": {"node": "a", "port": 1}, "b": {"node": "b", "port": 1}}
    link["status"]["endpoints"] = [{"node": "a", "address": "10.0.0.1"}, {"node": "b", "address": "10.0.0.2"}]
    ways = (("a", "b", 38_400), ("b", "a", 37_900))
    link["status"]["measurements"] = [
        {"from": source, "to": target, "transport": transport, "throughputMbps": rate, "measuredAt": measured}
        for source, target, rate in ways
        if measured
    ]
    return link


def dials(node: str, peer: str, address: str, state: str) -> Json:
    """A NodeProfile that has dialled an address."""
    profile = item(node)
    profile["status"]["reachability"] = [{"node": peer, "address": address, "state": state}]
    return profile


BOTH = [dials("a", "b", "10.0.0.2", "Reachable"), dials("b", "a", "10.0.0.1", "Reachable")]
UP = (
    ("Connected", "True", Reason.CONNECTED, "connected"),
    ("Symmetric", "True", Reason.BOTH_ENDS, "both"),
    ("RDMAUsable", "True", Reason.USABLE, "usable"),
)
NO_RDMA = (*UP[:2], ("RDMAUsable", "False", Reason.BELOW_THUNDERBOLT5, "40 Gb/s"))


@pytest.mark.parametrize(
    ("link", "profiles", "dial", "all_reduce"),
    [
        (cable(*UP, measured=LATER), BOTH, "ok", "ok"),
        (cable(*UP, measured="2026-03-01T11:59:59Z"), BOTH, "ok", "unknown"),
        (cable(*UP), BOTH, "ok", "unknown"),
        (cable(*UP, measured=LATER, transport="Ring"), BOTH, "ok", "unknown"),
        (cable(*NO_RDMA, measured=LATER, transport="Ring"), BOTH, "ok", "ok"),
        (cable(*NO_RDMA), BOTH, "ok", None),
        (cable(*NO_RDMA), [BOTH[0]], "unknown", None),
        (cable(*NO_RDMA), [BOTH[0], dials("b", "a", "10.9.9.9", "Reachable")], "unknown", None),
        (cable(*NO_RDMA), [BOTH[0], dials("b", "a", "10.0.0.1", "Suspect")], "warning", None),
        (cable(*NO_RDMA), [dials("a", "b", "10.0.0.2", "Unreachable"), BOTH[1]], "failure", None),
    ],
)
def test_the_self_test_of_a_cable(link: Json, profiles: list[Json], dial: str, all_reduce: str | None) -> None:
    checks = {one.name: one for one in cluster.checks(cluster.Objects([], profiles, [link]))}
    assert checks["dial"].state.value == dial
    assert (checks["all-reduce"].state.value if "all-reduce" in checks else None) == all_reduce
    if all_reduce == "ok":
        assert "gave the right sum at 2026-03-01 12:05:00 UTC; 37.9 Gb/s" in checks["all-reduce"].finding


@pytest.mark.parametrize("reason", sorted(WITHOUT_RDMA))
def test_a_cable_that_cannot_have_rdma_is_no_failure(reason: Reason) -> None:
    link = cable(*UP[:2], ("RDMAUsable", "False", reason, "models run over TCP"))
    checks = {one.name: one.state for one in cluster.checks(cluster.Objects([], BOTH, [link]))}
    assert checks["RDMAUsable"] is State.WARNING, "thunderfleet status and the live page show no problem either"


def test_one_direction_is_no_test() -> None:
    link = cable(*UP, measured=LATER)
    del link["status"]["measurements"][0]
    checks = {one.name: one.state for one in cluster.checks(cluster.Objects([], BOTH, [link]))}
    assert checks["all-reduce"] is State.UNKNOWN


def test_an_end_without_an_address_cannot_be_dialled() -> None:
    link = cable(*UP)
    del link["status"]["endpoints"][1]["address"]
    checks = {one.name: one for one in cluster.checks(cluster.Objects([], BOTH, [link]))}
    assert checks["dial"].state is State.UNKNOWN and "b reports no address" in checks["dial"].finding


def test_the_first_cause_of_a_cable() -> None:
    pulled = item(
        "a--b",
        ("Connected", "False", Reason.UNPLUGGED, "plug the cable in"),
        ("RDMAUsable", "False", Reason.PORT_DOWN, "down"),
        ("Symmetric", "False", Reason.NO_END, "none"),
    )
    slow = cable(
        ("Connected", "True", Reason.CABLE_DEGRADED, "slow"),
        ("RDMAUsable", "False", Reason.RDMA_DISABLED, "off"),
        ("Symmetric", "False", Reason.ONE_END, "one"),
    )
    assert found([], [], [pulled, slow, item("new")]) == [
        ("a--b", "Connected", "failure", "Unplugged", ""),
        ("a--b", "Connected", "warning", "Degraded", ""),
        ("a--b", "Symmetric", "warning", "OneEnd", ""),
        ("a--b", "RDMAUsable", "failure", "RDMADisabled", ""),
        ("a--b", "dial", "unknown", "", ""),
        ("new", "Connected", "unknown", "", ""),
    ]
