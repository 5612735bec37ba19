"""Macs for the tests: folders of small executables at the front of PATH, as recorded Macs are."""

from __future__ import annotations

import copy
import itertools
import json
import shlex
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_lib.clock import Moment
from thunderfleet_lib.kube import ApiError, Kube, ServerClock

from tests.support.waiting import until_async


def bus(
    receptacle: int, *, domain: str, speed: str | None = None, items: list[dict[str, Any]] | None = None, uid: str = "0x05AC"
) -> dict[str, Any]:
    """One Thunderbolt bus as system_profiler prints it; ``speed`` None is an idle port."""
    tag = {
        "current_speed_key": speed or "Up to 120 Gb/s",
        "link_status_key": "0x2" if speed else "0x100",
        "receptacle_id_key": str(receptacle),
        "receptacle_status_key": "receptacle_connected" if speed else "receptacle_no_devices_connected",
    }
    section: dict[str, Any] = {
        "_name": f"thunderboltusb4_bus_{receptacle - 1}",
        "device_name_key": "Mac Studio",
        "domain_uuid_key": domain,
        "receptacle_1_tag": tag,
        "route_string_key": "0",
        "switch_uid_key": f"{uid}{receptacle:02X}",
        "vendor_name_key": "Apple Inc.",
    }
    if items:
        section["_items"] = items
    return section


def peer(domain: str, name: str = "Mac Studio") -> dict[str, Any]:
    """Another Mac, as an item."""
    return {"_name": name, "device_name_key": "Mac15,14", "domain_uuid_key": domain, "vendor_name_key": "Apple Inc."}


def hub(name: str, *items: dict[str, Any], up: str = "80 Gb/s", down: str | None = None) -> dict[str, Any]:
    """A dock or display, as an item."""
    return {
        "_name": name,
        "_items": list(items),
        "receptacle_upstream_ambiguous_tag": {"current_speed_key": up, "receptacle_status_key": "receptacle_connected"},
        "receptacle_2_tag": {"current_speed_key": down or up, "receptacle_status_key": "receptacle_connected"},
        "receptacle_3_tag": {
            "current_speed_key": "Up to 120 Gb/s",
            "receptacle_status_key": "receptacle_no_devices_connected",
        },
    }


def report(*buses: dict[str, Any]) -> str:
    return json.dumps({"SPThunderboltDataType": list(buses)}, indent=2)


HARDWARE = json.dumps(
    {
        "SPHardwareDataType": [
            {
                "_name": "hardware_overview",
                "chip_type": "Apple M3 Ultra",
                "machine_model": "Mac15,14",
                "number_processors": "proc 28:20:8:0",
                "physical_memory": "96 GB",
            }
        ]
    }
)
DISPLAYS = json.dumps(
    {"SPDisplaysDataType": [{"_name": "Apple M3 Ultra", "sppci_cores": "60", "sppci_model": "Apple M3 Ultra"}]}
)
SYSCTL = "machdep.cpu.brand_string: Apple M3 Ultra\nhw.memsize: 103079215104\nhw.ncpu: 28\niogpu.wired_limit_mb: 0\n"
SW_VERS = "ProductName:\t\tmacOS\nProductVersion:\t\t26.3\nBuildVersion:\t\t25D125\n"
PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 02:00:00:00:00:01

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 02:00:00:00:00:02

Hardware Port: Wi-Fi
Device: en1

Hardware Port: Thunderbolt 1
Device: en2

Hardware Port: Thunderbolt 2
Device: en3

VLAN Configurations
===================
"""
SERVICES = """An asterisk (*) denotes that a network service is disabled.
(1) Ethernet
(Hardware Port: Ethernet, Device: en0)

(2) Thunderbolt Bridge
(Hardware Port: Thunderbolt Bridge, Device: bridge0)

(*) Old one
(Hardware Port: Wi-Fi, Device: en1)
"""
IFCONFIG = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
\tinet6 ::1 prefixlen 128
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:01
\tinet6 fe80::4ff:feea:4e40%en0 prefixlen 64 scopeid 0xb
\tinet 192.168.64.11 netmask 0xffffff00 broadcast 192.168.64.255
\tinet6 2001:db8::1234 prefixlen 64 autoconf temporary
\tmedia: autoselect (10Gbase-T <full-duplex>)
\tstatus: active
en2: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 10.0.1.1 netmask 0xfffffffc broadcast 10.0.1.3
\tmedia: autoselect <full-duplex>
\tstatus: active
en3: flags=8822<BROADCAST,SMART,SIMPLEX,MULTICAST> mtu 1500
\tmedia: autoselect <full-duplex>
\tstatus: inactive
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tConfiguration:
\t\tid 02:00:00:00:00:03 priority 0 hellotime 0 fwddelay 0
\tstatus: inactive
utun4: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1280
\tinet 100.101.102.103 --> 100.101.102.103 netmask 0xffffffff
"""
DEVICES = "    device          \t   node GUID\n    ------          \t----------------\n"
TWO_DEVICES = DEVICES + "    rdma_en2        \tc03b3b8fe481ac05\n    rdma_en3        \tc13b3b8fe481ac05\n"


def devinfo(states: Mapping[str, tuple[str, str | None]]) -> str:
    """What `ibv_devinfo -v` prints for device → (port state, GID)."""
    text = ""
    for name, (state, gid) in states.items():
        text += f"hca_id:\t{name}\n\ttransport:\t\t\tThunderbolt (100)\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
        text += f"\t\t\tstate:\t\t\t{state}\n\t\t\tlink_layer:\t\tThunderbolt\n\t\t\tGID[  0]:\t\tfe80::1\n"
        text += f"\t\t\tGID[  1]:\t\t{gid}\n" if gid else ""
        text += "\n"
    return text


MINE = "356546FE-F080-4947-8EF8-CB3D9ECB71DF"
MINE_TOO = "A438B026-31FA-4B13-8401-D1AAEDDDCC4A"
THEIRS = "906F61D4-D2D0-4D64-838B-635F8E2EF46D"
TREE = report(bus(2, domain=MINE_TOO), bus(1, domain=MINE, speed="80 Gb/s", items=[peer(THEIRS)]))
DEVINFO = devinfo({"rdma_en2": ("PORT_ACTIVE (4)", "::ffff:10.0.1.1"), "rdma_en3": ("PORT_DOWN (1)", None)})
CAPABILITIES = json.dumps({"mlxVersion": "0.32.4", "mlxLmVersion": "0.32.2", "backends": ["ring"], "device": "cpu"})


@dataclass(frozen=True)
class Machine:
    """A folder of executables that print what the Mac's commands print."""

    folder: Path

    def says(self, command: str, text: str) -> None:
        """The command prints the text, whatever its arguments."""
        self._replace(f"{command}.txt", text)
        self.script(command, f"exec cat {shlex.quote(str(self.folder / f'{command}.txt'))}")

    def script(self, command: str, body: str) -> None:
        self._replace(command, f"#!/bin/sh\n{body}\n")

    def tree(self, text: str) -> None:
        """Replaces the Thunderbolt report."""
        self._replace("thunderbolt.json", text)

    def _replace(self, name: str, text: str) -> None:
        """By rename, because a running command must not be written to, and reads all of a file or nothing of it."""
        new = self.folder / f"{name}.new"
        new.write_text(text)
        new.chmod(0o755)
        new.rename(self.folder / name)

    def lacks(self, command: str) -> None:
        (self.folder / command).unlink()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A Studio with one cable at port 1 and working RDMA; PATH has only its commands, `sh` and `cat`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("cat", "sleep"):
        (tools / tool).symlink_to(next(place / tool for place in (Path("/bin"), Path("/usr/bin")) if (place / tool).exists()))
    monkeypatch.setenv("PATH", f"{folder}:{tools}")
    made = Machine(folder)
    made.tree(TREE)
    (folder / "hardware.json").write_text(HARDWARE)
    (folder / "displays.json").write_text(DISPLAYS)
    quoted = shlex.quote(str(folder))
    made.script(
        "system_profiler",
        f'case "$1" in SPThunderboltDataType) exec cat {quoted}/thunderbolt.json;; '
        f"SPDisplaysDataType) exec cat {quoted}/displays.json;; *) exec cat {quoted}/hardware.json;; esac",
    )
    (folder / "ports.txt").write_text(PORTS)
    (folder / "services.txt").write_text(SERVICES)
    made.script(
        "networksetup",
        f'case "$1" in -listallhardwareports) exec cat {quoted}/ports.txt;; *) exec cat {quoted}/services.txt;; esac',
    )
    made.says("ifconfig", IFCONFIG)
    made.says("sysctl", SYSCTL)
    made.says("sw_vers", SW_VERS)
    made.says("rdma_ctl", "enabled\n")
    made.says("ibv_devices", TWO_DEVICES)
    made.says("ibv_devinfo", DEVINFO)
    made.says("thunderfleet-runner", CAPABILITIES)
    return made


@dataclass(frozen=True)
class Shapes:
    """The shapes of what macOS prints, for tests to vary."""

    bus: Callable[..., dict[str, Any]] = bus
    peer: Callable[..., dict[str, Any]] = peer
    hub: Callable[..., dict[str, Any]] = hub
    report: Callable[..., str] = report
    devinfo: Callable[..., str] = devinfo
    mine: str = MINE
    mine_too: str = MINE_TOO
    theirs: str = THEIRS
    texts: tuple[str, ...] = (
        *(TREE, HARDWARE, DISPLAYS, SYSCTL, SW_VERS, PORTS, SERVICES, IFCONFIG, TWO_DEVICES, DEVINFO, CAPABILITIES),
    )
    tree: str = TREE
    hardware: str = HARDWARE
    sysctl: str = SYSCTL
    ports: str = PORTS
    services: str = SERVICES
    ifconfig: str = IFCONFIG
    devices: str = TWO_DEVICES
    no_devices: str = DEVICES
    devinfo_text: str = DEVINFO


@pytest.fixture(scope="session")
def shapes() -> Shapes:
    return Shapes()


def write_weights(file: Path, names: tuple[str, ...], cut: int = 0) -> None:
    """A safetensors file with float32 tensors of four numbers, without its last ``cut`` bytes."""
    header = {name: {"dtype": "F32", "shape": [4], "data_offsets": [i * 16, i * 16 + 16]} for i, name in enumerate(names)}
    encoded = json.dumps({"__metadata__": {"format": "mlx"}, **header}).encode()
    data = struct.pack("<Q", len(encoded)) + encoded + b"\0" * (16 * len(names))
    file.write_bytes(data[: len(data) - cut])


@pytest.fixture
def make_model() -> Callable[..., Path]:
    def make(folder: Path, *, index: bool = False, cut: int = 0) -> Path:
        """A model of two tensors, in one file or in two with an index."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "qwen2"}')
        if index:
            names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
            for tensor, name in names.items():
                write_weights(folder / name, (tensor,), cut)
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
        else:
            write_weights(folder / "model.safetensors", ("a", "b"), cut)
        return folder

    return make


@pytest.fixture(scope="session")
def until() -> Callable[..., Awaitable[None]]:
    return until_async


class FakeKube(Kube):
    """An API server in memory, with what the agent uses.

    Apply by field manager on main resources and /status, 404 on the status of an object that does not exist, an unchanged
    resourceVersion after an apply without changes, lists by label and by the ends of links.
    """

    def __init__(self) -> None:
        self.away = False
        self.sent: list[tuple[str, str]] = []
        """Method and path of every write that was answered."""
        self.objects: dict[str, dict[str, Any]] = {"/api/v1/nodes/studio-1": {"metadata": {"name": "studio-1", "uid": "n1"}}}
        self._applied: dict[str, dict[str, dict[str, Any]]] = {}
        self._versions = itertools.count(1)
        self.reconnects = 0
        self.clock = ServerClock()
        self.ahead = 0.0
        """Seconds by which the clock of this Mac is ahead of the API server's."""

    async def reconnect(self) -> None:
        self.reconnects += 1

    async def _answer(self, method: str, path: str, query: Any, body: Any, *_: Any, **__: Any) -> tuple[dict[str, Any], int]:
        if self.away:
            raise ApiError(0, "Unreachable", f"{method} {path}: cannot reach the API server")
        now = Moment.now()
        self.clock.note(formatdate(now.wall - self.ahead, usegmt=True), now, now)
        if method == "GET":
            return copy.deepcopy(self._get(path, query or {})), 0
        assert method == "PATCH" and query["force"] and len(query["fieldManager"].encode()) <= 128
        self.sent.append((method, path))
        return copy.deepcopy(self._apply(path, query["fieldManager"], copy.deepcopy(body))), 0

    def _get(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        if path.rpartition("/")[2] in ("nodeprofiles", "thunderboltlinks"):
            items = [item for key, item in sorted(self.objects.items()) if key.startswith(path + "/")]
            label = query.get("labelSelector")
            if field := query.get("fieldSelector"):
                end, _, node = field.removeprefix("spec.").partition(".node=")
                items = [i for i in items if i["spec"][end]["node"] == node]
            if label and " in (" in label:
                key, _, values = label.rstrip(")").partition(" in (")
                items = [i for i in items if i["metadata"].get("labels", {}).get(key) in values.split(",")]
            elif label:
                items = [i for i in items if label in i["metadata"].get("labels", {})]
            most = int(query.get("limit") or len(items))
            more = {"continue": "more", "remainingItemCount": len(items) - most} if len(items) > most and not label else {}
            return {"items": items[:most] if more else items, "metadata": more}
        return self._existing(path)

    def _existing(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise ApiError(404, "NotFound", f"{path} not found")
        return self.objects[path]

    def _apply(self, path: str, manager: str, body: dict[str, Any]) -> dict[str, Any]:
        main = path.removesuffix("/status")
        if main != path:
            self._existing(main)
            body = {"status": body["status"]}
        elif main not in self.objects:
            self.objects[main] = {"metadata": {"uid": f"u{next(self._versions)}", "resourceVersion": "0"}}
            self._applied[main] = {}
        applied = self._applied.setdefault(main, {}).setdefault(manager, {})
        before = copy.deepcopy(applied)
        applied.update(body)
        found = self.objects[main]
        if applied != before:
            found["metadata"] |= {**applied.get("metadata", {}), "resourceVersion": str(next(self._versions))}
            found.update({key: value for key, value in applied.items() if key not in ("metadata", "status")})
            parts = [whole.get("status", {}) for whole in self._applied[main].values()]
            found["status"] = {key: value for part in parts for key, value in part.items()}
            endpoints = [endpoint for part in parts for endpoint in part.get("endpoints", [])]
            if endpoints:
                found["status"]["endpoints"] = endpoints
        return found

    def delete_behind_the_back(self, path: str) -> None:
        """Another client deletes the object."""
        del self.objects[path], self._applied[path]


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()
