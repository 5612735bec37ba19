"""JACCL without its own rendezvous: MLX's environment variables, and the all-gather that supervisors relay.

MLX's own side channel is a TCP port without a time limit or authentication; ``init(all_gather_factory=...)`` replaces it. MLX
still takes the rank and the devices from the environment (source: the headers that MLX installs): MLX_RANK, MLX_IBV_DEVICES (a
file with one row for each rank; its length is the world size), and MLX_JACCL_RING, whose presence selects a ring. A JACCL_
variable takes precedence over its MLX_ counterpart. MLX_JACCL_COORDINATOR is needed only without a factory.

JACCL gathers five times: the number of each rank's connections, the connections (device's local id, queue pair, GID), and two
barriers. All ranks gather in the same order, so a gather's number identifies it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.vocabulary import Backend

MESH_RANKS = 8
"""Maximum ranks of a mesh in MLX."""
PART_LIMIT = 64 * 1024
"""Maximum bytes of one rank's part of a gather; JACCL sends a few hundred."""


def is_ring(plan: Plan) -> bool:
    """Whether the plan's devices form a ring rather than a mesh."""
    full = all(device is not None for entry in plan.ranks for rank, device in enumerate(entry.devices) if rank != entry.rank)
    return plan.jaccl_ring or not full


def device_matrix(plan: Plan) -> list[list[str | None]]:
    """``[i][j]``: the RDMA device on rank i towards rank j. Raises ValueError for a plan that MLX would refuse.

    In a ring only neighbors have entries: MLX counts entries to recognize a ring.
    """
    size, ring = plan.world_size, is_ring(plan)
    if not ring and size > MESH_RANKS:
        raise ValueError(
            f"a JACCL mesh has at most {MESH_RANKS} ranks, the plan has {size}: set spec.transport to JACCLRing or Auto"
        )
    matrix: list[list[str | None]] = []
    for entry in plan.ranks:
        row: list[str | None] = []
        for peer, device in enumerate(entry.devices):
            beside = (peer - entry.rank) % size in (1, size - 1)
            if peer == entry.rank or (ring and not beside):
                row.append(None)
            elif device is None:
                raise ValueError(f"the plan names no RDMA device of rank {entry.rank} ({entry.node}) towards rank {peer}")
            else:
                row.append(device)
        matrix.append(row)
    return matrix


def environment(plan: Plan, rank: int, devices_file: Path, coordinator: str = "") -> dict[str, str]:
    """MLX's variables for one rank; ``coordinator`` (ip:port of rank 0) only without a factory."""
    variables = {"MLX_RANK": str(rank), "MLX_IBV_DEVICES": str(devices_file)}
    if is_ring(plan):
        variables["MLX_JACCL_RING"] = "1"
    if coordinator:
        variables["MLX_JACCL_COORDINATOR"] = coordinator
    return variables


def write_devices(plan: Plan, folder: Path, attempt: int) -> Path:
    """Writes the file for MLX_IBV_DEVICES, a new one for each attempt."""
    for old in folder.glob("devices-*.json"):
        old.unlink(missing_ok=True)
    path = folder / f"devices-{attempt}.json"
    path.write_text(json.dumps(device_matrix(plan)), encoding="utf-8")
    return path


def wants_coordinator(plan: Plan) -> bool:
    """Whether the plan uses JACCL, so that --jaccl-environment applies."""
    return plan.backend is Backend.JACCL


class UnevenParts(ValueError):
    """Two ranks sent different numbers of bytes to one gather: their JACCL versions or devices differ."""


@dataclass(frozen=True)
class Exchange:
    """The gathers of one attempt, at the leader."""

    size: int
    parts: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict)
    """Parts by number of the gather, then by rank."""

    def put(self, rank: int, number: int, part: bytes) -> tuple["Exchange", bytes | None]:
        """The exchange with a rank's part, and the whole in order of ranks when the part was the last one.

        Raises UnevenParts, or ValueError for a part that is too large.
        """
        if len(part) > PART_LIMIT:
            raise ValueError(f"rank {rank} sent {len(part)} bytes to all-gather {number}, at most {PART_LIMIT} are allowed")
        gathered = {**self.parts.get(number, {}), rank: part}
        for other, theirs in sorted(gathered.items()):
            if len(theirs) != len(part):
                raise UnevenParts(
                    f"in all-gather {number}, rank {other} sent {len(theirs)} bytes and rank {rank} {len(part)}: "
                    "the ranks' devices or versions of MLX differ"
                )
        if len(gathered) < self.size:
            return Exchange(self.size, {**self.parts, number: gathered}), None
        left = {key: value for key, value in self.parts.items() if key != number}
        return Exchange(self.size, left), b"".join(gathered[rank] for rank in range(self.size))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks whose part the oldest unfinished gather waits for; empty when none is in progress."""
        if not self.parts:
            return ()
        oldest = self.parts[min(self.parts)]
        return tuple(rank for rank in range(self.size) if rank not in oldest)
