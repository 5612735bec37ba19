"""Input of a rank's process at the start of its attempt: MLX's environment, its files, and the ``Start`` message."""

from collections.abc import Sequence
from pathlib import Path

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.vocabulary import Backend, Split, Verify, WiredLimit

from thunderfleet_runner import framing, protocol
from thunderfleet_runner.net import jaccl

PROVE_SECONDS = 60.0
"""Limit of one exchange in the check of the connections. The largest message takes less than this over a slow LAN."""


def mlx_environment(
    plan: Plan, rank: int, attempt: int, folder: Path, hosts: Sequence[str], coordinator: str
) -> tuple[dict[str, str], Path | None]:
    """MLX's variables for this rank and, for a ring, the hostfile. Writes the files into ``folder``. Raises OSError."""
    if hosts:
        hostfile = write_hostfile(folder, attempt, hosts)
        return {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)}, hostfile
    if plan.backend is Backend.JACCL:
        devices = jaccl.write_devices(plan, folder, attempt)
        return jaccl.environment(plan, rank, devices, coordinator), None
    return {}, None


def write_hostfile(folder: Path, attempt: int, hosts: Sequence[str]) -> Path:
    """MLX's format: one list of ``ip:port`` a rank. One file for each attempt: an orphan must not read the next one's."""
    for old in folder.glob("hosts-*.json"):
        old.unlink(missing_ok=True)
    path = folder / f"hosts-{attempt}.json"
    path.write_text("[" + ",".join(f'["{host}"]' for host in hosts) + "]")
    return path


def start_message(
    plan: Plan, rank: int, attempt: int, hostfile: Path | None, environment: dict[str, str], *, jaccl_environment: bool
) -> protocol.Start:
    """The first message to a rank's process in its attempt."""
    entry = plan.ranks[rank]
    mesh = plan.backend is Backend.JACCL and not jaccl.is_ring(plan)
    return protocol.Start(
        attempt=attempt,
        rank=rank,
        size=plan.world_size,
        backend=plan.backend,
        split=plan.split,
        layers=entry.layers,
        pipeline=tuple(other.layers for other in plan.ranks if other.layers is not None),
        model=plan.model,
        model_path=plan.model_path,
        prove=plan.verify is not Verify.NONE,
        prove_seconds=PROVE_SECONDS,
        check_products=plan.verify is Verify.FULL,
        memory_bytes=entry.memory_bytes,
        memory=plan.memory,
        hostfile=str(hostfile) if hostfile else None,
        mesh=mesh,
        equal_logits=equal_logits(plan.verify, plan.split, plan.world_size, mesh=mesh),
        jaccl_environment=jaccl_environment,
        environment={**plan.runtime.environment, framing.ATTEMPT_VARIABLE: str(attempt), **environment},
        wired=plan.runtime.wired_limit is WiredLimit.AUTO,
    )


def equal_logits(verify: Verify, split: Split, size: int, *, mesh: bool) -> bool:
    """Whether the ranks compare the bits of their logits. In a mesh of more than two, ranks add values as they arrive."""
    return verify is Verify.FULL and (split is Split.PIPELINE or not mesh or size == 2)
