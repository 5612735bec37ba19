"""A stand-in for JACCL on a recorded Mac: its checks, its exchange, its errors, and a group that is a TCP ring underneath.

The order of steps, the texts and the exception types are those of JACCL's source (MLX 0.32): devices are opened, each gets a
protection domain, completion queue and queue pair, buffers are registered, queue pairs go to INIT, addresses are exchanged by
all-gathers, queue pairs go to RTR and RTS, two barriers. ``jaccl.json`` beside this file has the Mac's devices and what is at
the other end of each cable. ``control.json``, if it exists, sets what fails:

    {"points": [{"at": "rtr", "errno": 96, "device": "rdma_en2", "attempts": [1, 2], "delaySeconds": 0.5, "hang": false}]}

``at`` is one of POINTS; with ``"fail": false`` the point only waits. Without ``device`` it holds for every device, without
``attempts`` (of the runner) for every attempt. ``{"at": "wire", "flipAfterBytes": N}`` flips a bit of each stream that comes in
over the cable from the left neighbor, after N bytes; with ``loseAfterBytes``, what follows never arrives; with
``swapAfterBytes``, two neighboring KiB are swapped; with ``repeatAfterBytes``, the 4 KiB before arrive once more instead of
those that follow. ``{"at": "values", "aboveBytes": A, "belowBytes": B}`` changes the sign of all values of a collective whose
result has more than A and less than B bytes; with ``"how": "stale"``, the values are those of the last such collective. With
``"aboveValue": V``, only values above V change; with ``"peer": R``, messages of other ranks than R do not change.
"""

import atexit
import contextlib
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
RECORD = HERE / "jaccl.json"
CONTROL = HERE / "control.json"
MESH_RANKS = 8
NO_GID = (
    "[jaccl] No IPv4-mapped GID for this device. Thunderbolt RDMA ports only publish one once the interface has an IPv4 address"
)
POINTS: dict[str, tuple[type[Exception], str]] = {
    "find_device": (RuntimeError, "[jaccl] Could not find device {device} ({count} available)"),
    "open_device": (RuntimeError, "[jaccl] Could not open device {device}"),
    "protection_domain": (RuntimeError, "[jaccl] Couldn't allocate protection domain"),
    "completion_queue": (RuntimeError, "[jaccl] Couldn't create completion queue"),
    "queue_pair": (RuntimeError, "[jaccl] Couldn't create queue pair"),
    "memory_region": (RuntimeError, "[jaccl] Register memory region failed"),
    "init": (ValueError, "[jaccl] Changing queue pair to INIT failed with errno {errno}"),
    "gid": (RuntimeError, NO_GID),
    "rtr": (ValueError, "[jaccl] Changing queue pair to RTR failed with errno {errno}"),
    "rts": (ValueError, "[jaccl] Changing queue pair to RTS failed with errno {errno}"),
    "barrier": (RuntimeError, "[jaccl] Recv failed with errno={errno}"),
    "send": (ValueError, "[jaccl] Send failed with error code {errno}"),
    "recv": (ValueError, "[jaccl] Recv failed with error code {errno}"),
}
"""Where JACCL can fail, in order, and its errors. ``send`` and ``recv`` are after init, in any collective."""
_DESTINATION = struct.Struct("<iii4x16s")
"""Local id, queue pair number, packet sequence number, GID, as C++ lays them out."""
_NO_DESTINATION = _DESTINATION.pack(-1, 0, 0, bytes(16))
_INT = struct.Struct("<i")

Gather = Callable[[bytes, int], bytes]
Rows = list[list[list[str]]]
"""For every pair of ranks the devices of the first that face the second."""


def attempt() -> int | None:
    """The attempt of this rank, from its supervisor; None in other processes."""
    text = os.environ.get("THUNDERFLEET_RANK_ATTEMPT", "")
    return int(text) if text.isdigit() else None


HARMS = {"flipAfterBytes": "flip", "loseAfterBytes": "lose", "swapAfterBytes": "swap", "repeatAfterBytes": "repeat"}
"""Faults of the cable's data, with their names in the control file and in ``recorded_cable``."""


def harm() -> list[str]:
    """The arguments of ``recorded_cable`` for the wire fault in the control file."""
    return next(([HARMS[key], str(entry[key])] for entry in _entries("wire") for key in HARMS if key in entry), [])


def _entries(point: str) -> list[dict[str, Any]]:
    """The entry of the control file for this point in this attempt."""
    try:
        control = json.loads(CONTROL.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [
        entry
        for entry in control["points"]
        if entry["at"] == point and ("attempts" not in entry or attempt() in entry["attempts"])
    ]


class Values:
    """The fault in the control file for results of collectives."""

    def __init__(self) -> None:
        self._last: dict[tuple[Any, ...], Any] = {}

    def changed(self, found: Any, sender: int | None = None) -> Any:
        """A collective's result with the fault of the control file. ``sender``: the sending rank; None if all ranks sent."""
        for entry in _entries("values"):
            if not entry["aboveBytes"] < found.nbytes < entry["belowBytes"]:
                continue
            if sender not in (None, entry.get("peer", sender)):
                continue
            if "aboveValue" in entry:
                # Changes the sign of those values only.
                return found * (1 - 2 * (found > entry["aboveValue"])).astype(found.dtype)
            if entry.get("how") != "stale":
                return -found
            kind = (found.dtype, *found.shape)
            # As if a completion were mistaken for that of the next message.
            last, self._last[kind] = self._last.get(kind, found), found
            return last
        return found


def fail_at(point: str, device: str = "", count: int = 0) -> None:
    """Wait, hang or raise as the control file sets it for this point."""
    for entry in _entries(point):
        if entry.get("device") not in (None, device):
            continue
        time.sleep(entry.get("delaySeconds", 0))
        if entry.get("hang"):
            while True:
                signal.pause()
        if not entry.get("fail", True):
            continue
        raise_at(point, device, count, entry.get("errno", 0))


def raise_at(point: str, device: str = "", count: int = 0, errno: int = 0) -> None:
    """Raise JACCL's error for this point."""
    kind, text = POINTS[point]
    raise kind(text.format(device=device, count=count, errno=errno))


def _variable(name: str) -> str | None:
    return os.environ.get(f"JACCL_{name}", os.environ.get(f"MLX_{name}"))


def configuration(*, coordinated: bool) -> tuple[int, Rows, str, bool] | None:
    """(rank, devices, coordinator, whether a ring is preferred) from the environment; None if it is incomplete."""
    rank, file = _variable("RANK"), _variable("IBV_DEVICES")
    coordinator = os.environ.get("JACCL_COORDINATOR", os.environ.get("MLX_JACCL_COORDINATOR", ""))
    ring = "JACCL_RING" in os.environ or "MLX_JACCL_RING" in os.environ
    if rank is None or file is None or (coordinated and not coordinator):
        return None
    matrix = json.loads(Path(file).read_text(encoding="utf-8"))
    rows = [[[] if names is None else [names] if isinstance(names, str) else names for names in row] for row in matrix]
    if any(len(row) != len(rows) for row in rows):
        raise RuntimeError("[jaccl] The device file should contain the connectivity of each rank to all other ranks")
    return int(rank), rows, coordinator, ring


def is_mesh(rows: Rows) -> bool:
    """Whether every rank has a device for every other rank and none for itself."""
    return len(rows) >= 2 and all(
        (here == there) != bool(names) for here, row in enumerate(rows) for there, names in enumerate(row)
    )


def is_ring(rows: Rows) -> bool:
    """Whether all neighbors have the same number of devices, at least one."""
    size = len(rows)
    beside = [rows[here][(here + step) % size] for here in range(size) for step in (-1, 1)]
    return size >= 2 and len({len(names) for names in beside}) == 1 and bool(beside[0])


class Wire:
    """The process for this rank's cable; see ``recorded_cable``."""

    def __init__(self, left_address: str) -> None:
        # Reserves the port until MLX listens on it.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.mlx_port: int = self._reserved.getsockname()[1]
        command = [sys.executable, "-S", "-s", str(HERE / "recorded_cable.py"), left_address, str(self.mlx_port), *harm()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        if len(line) != 2:
            raise RuntimeError(f"the recorded cable at {left_address} did not start")
        self.cable_port, self.inner_port = int(line[0]), int(line[1])
        atexit.register(self.process.kill)

    def dial(self, ip: str, port: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{ip} {port}\n")
        self.process.stdin.flush()


def tcp_gather(rank: int, size: int, coordinator: str) -> Gather:
    """JACCL's side channel: rank 0 listens at the coordinator's address, the others connect, with four attempts."""
    ip, _, port = coordinator.rpartition(":")
    peers: list[socket.socket] = []
    if rank == 0:
        with socket.create_server((ip, int(port)), backlog=size) as server:
            accepted = [server.accept()[0] for _ in range(size - 1)]
        peers = [peer for _, peer in sorted((_INT.unpack(_receive(peer, 4))[0], peer) for peer in accepted)]
    else:
        wait = 1.0
        for _ in range(4):
            with contextlib.suppress(OSError):
                peers = [socket.create_connection((ip, int(port)))]
                break
            time.sleep(wait)
            wait *= 2
        else:
            raise RuntimeError("[jaccl] Couldn't connect (error: 61)")
        peers[0].sendall(_INT.pack(rank))

    def gather(part: bytes, length: int) -> bytes:
        if rank != 0:
            peers[0].sendall(part)
            return _receive(peers[0], size * length)
        whole = part + b"".join(_receive(peer, length) for peer in peers)
        for peer in peers:
            peer.sendall(whole)
        return whole

    return gather


def _receive(peer: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = peer.recv(length - len(data))
        if not more:
            raise RuntimeError("[jaccl] Recv failed: peer closed the side channel (another rank failed during init or exited)")
        data += more
    return data


def _gather_all(gather: Gather, part: bytes, size: int) -> list[bytes]:
    whole = gather(part, len(part))
    if len(whole) != size * len(part):
        raise RuntimeError(f"the all-gather gave {len(whole)} bytes, expected {size * len(part)}")
    return [whole[rank * len(part) : (rank + 1) * len(part)] for rank in range(size)]


def connect(rank: int, rows: Rows, gather: Gather, record: Mapping[str, Any]) -> Wire:
    """JACCL's start up to its last barrier. Returns this rank's wire."""
    size = len(rows)
    left, right = (rank - 1) % size, (rank + 1) % size
    # A mesh has a connection to each rank, a ring to its neighbors.
    facing = {peer: names[0] for peer, names in enumerate(rows[rank]) if names}
    known: Mapping[str, Any] = record["devices"]
    _open_devices(list(facing.values()), known)
    wire = Wire(known[facing[left]]["address"])
    mine = [_NO_DESTINATION] * size
    for peer, name in facing.items():
        gid = ipaddress.IPv6Address(f"::ffff:{known[name]['address']}").packed
        # A port takes the role of RDMA's queue pair number.
        mine[peer] = _DESTINATION.pack(known[name]["number"], wire.cable_port if peer == left else 0, 7, gid)
    lengths = _gather_all(gather, _INT.pack(size), size)
    if {_INT.unpack(length)[0] for length in lengths} != {size}:
        raise RuntimeError("[jaccl] The ranks have different numbers of connections")
    infos = _gather_all(gather, b"".join(mine), size)
    for peer, name in facing.items():
        ip, port = _ready_to_receive(name, known[name], infos[peer], rank)
        fail_at("rts", name)
        if peer == right:
            wire.dial(ip, port)
    for _ in range(2):
        fail_at("barrier")
        _gather_all(gather, _INT.pack(0), size)
    return wire


def _open_devices(names: Sequence[str], known: Mapping[str, Any]) -> None:
    """JACCL's work on its own devices, with the errors that it raises."""
    for name in names:
        if name not in known:
            raise_at("find_device", name, len(known))
        fail_at("find_device", name, len(known))
        fail_at("open_device", name)
    for point in ("protection_domain", "completion_queue", "queue_pair"):
        for name in names:
            fail_at(point, name)
    for name in names:
        fail_at("memory_region", name)
        fail_at("init", name)
    for name in names:
        fail_at("gid", name)
        if not known[name]["address"]:
            raise_at("gid", name)


def _ready_to_receive(name: str, device: Mapping[str, Any], info: bytes, rank: int) -> tuple[str, int]:
    """The peer's address and port from its ``info``; fails unless the peer is at the other end of the device's cable."""
    fail_at("rtr", name)
    _, port, _, gid = _DESTINATION.unpack_from(info, rank * _DESTINATION.size)
    ip = str(ipaddress.IPv6Address(gid).ipv4_mapped)
    if not device["active"]:
        raise_at("rtr", name, errno=96)
    if ip != device["peer"]:
        # macOS' ETIMEDOUT: there is no peer with this address.
        raise_at("rtr", name, errno=60)
    return ip, port


def ring_group(real_init: Callable[..., Any], rank: int, size: int, wire: Wire) -> Any:
    """MLX's ring over the wire. Each rank has its own hostfile, in which only its own entry and the next are used."""
    hosts = [["127.0.0.1:9"] for _ in range(size)]
    hosts[rank] = [f"127.0.0.1:{wire.mlx_port}"]
    hosts[(rank + 1) % size] = [f"127.0.0.1:{wire.inner_port}"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(hosts, file)
        file.flush()
        before = {name: os.environ.get(name) for name in ("MLX_HOSTFILE", "MLX_RANK")}
        os.environ.update(MLX_HOSTFILE=file.name, MLX_RANK=str(rank))
        try:
            return real_init(strict=True, backend="ring")
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def checked_configuration(coordinated: bool, strict: bool) -> tuple[int, Rows, str] | None:
    """(rank, devices, coordinator) from the environment; None if it is incomplete and not ``strict``. Raises like JACCL."""
    found = configuration(coordinated=coordinated)
    if found is None:
        if not strict:
            return None
        raise RuntimeError(
            "[jaccl] You need to provide via environment variables a rank (JACCL_RANK/MLX_RANK), a device file "
            "(JACCL_IBV_DEVICES/MLX_IBV_DEVICES) and a coordinator ip/port (JACCL_COORDINATOR/MLX_JACCL_COORDINATOR)."
        )
    rank, rows, coordinator, ring = found
    size = len(rows)
    if not is_ring(rows):
        raise RuntimeError("[jaccl] The configuration should define a valid mesh or a valid ring.")
    if is_mesh(rows) and not ring and size > MESH_RANKS:
        raise RuntimeError(f"[jaccl] The JACCL mesh supports up to {MESH_RANKS} peers but {size} were provided.")
    return rank, rows, coordinator


class RecordedJaccl:
    """Stands in for JACCL in ``mlx.core.distributed``; other backends stay MLX's own."""

    def __init__(self, distributed: Any) -> None:
        self._init, self._is_available = distributed.init, distributed.is_available
        self._group: Any = None
        self._values = Values()

    def is_available(self, backend: str = "any") -> bool:
        """``mx.distributed.is_available``."""
        return backend == "jaccl" or bool(self._is_available(backend))

    def init(
        self, strict: bool = False, backend: str = "any", *, all_gather_factory: Callable[[int, int], Gather] | None = None
    ) -> Any:
        """``mx.distributed.init``."""
        if backend != "jaccl":
            options = {} if all_gather_factory is None else {"all_gather_factory": all_gather_factory}
            return self._init(strict, backend, **options)
        if self._group is None:
            found = checked_configuration(all_gather_factory is None, strict)
            if found is None:
                return self._init()
            rank, rows, coordinator = found
            size = len(rows)
            gather = all_gather_factory(rank, size) if all_gather_factory else tcp_gather(rank, size, coordinator)
            wire = connect(rank, rows, gather, json.loads(RECORD.read_text(encoding="utf-8")))
            self._group = ring_group(self._init, rank, size, wire)
        return self._group

    def failing(self, collective: Callable[..., Any], sender: int | None = None) -> Callable[..., Any]:
        """``collective`` with the faults of the control file once there is a group.

        ``sender``: the place among its arguments of the rank that sends; None if all ranks do.
        """

        def call(*arguments: Any, **options: Any) -> Any:
            if self._group is not None:
                for point in ("send", "recv"):
                    fail_at(point)
                return self._values.changed(collective(*arguments, **options), arguments[sender] if sender else None)
            return collective(*arguments, **options)

        return call


def replace(module: ModuleType) -> None:
    """Put the recorded JACCL and the memory of the Mac's GPU into ``mlx.core``."""
    core: Any = module
    distributed, device_info = core.distributed, core.device_info

    def recorded_info(*device: Any) -> dict[str, Any]:
        memory = json.loads(RECORD.read_text(encoding="utf-8"))["gpuMemoryBytes"]
        return {**device_info(*device), "max_recommended_working_set_size": memory}

    core.device_info = recorded_info
    jaccl = RecordedJaccl(distributed)
    senders = {"recv": 2, "recv_like": 1}
    for name in ("all_sum", "all_gather", "all_max", "all_min", "send", *senders):
        setattr(distributed, name, jaccl.failing(getattr(distributed, name), senders.get(name)))
    distributed.init, distributed.is_available = jaccl.init, jaccl.is_available
