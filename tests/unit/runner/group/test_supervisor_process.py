"""Supervisors as processes: what remains when one is killed, and what one must not import."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import thunderfleet_runner
from thunderfleet_crds.exchange.plan import RuntimePlan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner.host import rankprocess

from tests.support.processes import alive

SERVE = Path(__file__).parents[1] / "serve_stand_in.py"


@pytest.fixture
async def start_process(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts a rank's supervisor as a process."""
    started: list[asyncio.subprocess.Process] = []

    async def start(group: Any, rank: int, **environment: str) -> asyncio.subprocess.Process:
        plan = group.folder / "plan.json"
        plan.write_text(group.plan.model_dump_json(by_alias=True))
        arguments = [str(SERVE), str(plan), f"tiny-0-{rank}", str(group.keys), str(group.folder / f"state-{rank}")]
        with (group.folder / f"log-{rank}").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stderr=log, env={**os.environ, **environment}
            )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_killed_supervisor_leaves_no_rank_and_its_successor_joins_again(
    make_group: Callable[..., Any], start_process: Callable[..., Any]
) -> None:
    group = make_group(2)
    leader = group.start(0)
    process = await start_process(group, 1)
    await group.until_ready()
    pid = int((group.folder / "state-1" / "rank.pid").read_text())
    assert os.getpgid(pid) == pid
    process.kill()
    await group.until(lambda: not alive(pid), "the orphan is gone")
    await group.until(lambda: leader.state.phase is GroupPhase.WAITING, "the leader waits")
    await start_process(group, 1)
    await group.until_ready()
    assert leader.state.recoveries == 1


async def test_a_killed_leader_ends_all_ranks_and_its_successor_leads(
    make_group: Callable[..., Any], start_process: Callable[..., Any]
) -> None:
    group = make_group(2)
    process = await start_process(group, 0)
    other = group.start(1)
    await group.until(lambda: other.state.phase is GroupPhase.READY, "rank 1 knows that the group is Ready")
    pids = [int((group.folder / f"state-{rank}" / "rank.pid").read_text()) for rank in range(2)]
    process.kill()
    await group.until(lambda: not any(map(alive, pids)), "no rank is left")
    await group.until(lambda: other.state.phase is GroupPhase.WAITING, "rank 1 waits for its leader")
    await start_process(group, 0)
    await group.until(lambda: other.state.phase is GroupPhase.READY, "the group is Ready again")
    assert other.state.recoveries == 1


async def test_a_frozen_supervisor_is_cut_off_and_comes_back(
    make_group: Callable[..., Any], start_process: Callable[..., Any]
) -> None:
    group = make_group(2)
    leader = group.start(0)
    process = await start_process(group, 1)
    await group.until_ready()
    process.send_signal(signal.SIGSTOP)
    try:
        await group.until(lambda: leader.state.failure is not None, "the silence is noticed")
        assert leader.state.failure.reason == "SupervisorLost"
        assert "silent for 3 s" in leader.state.failure.message
        assert leader.state.failure.node == "studio-1"
    finally:
        process.send_signal(signal.SIGCONT)
    await group.until_ready()


async def test_a_supervisor_process_ends_0_on_sigterm(
    make_group: Callable[..., Any], start_process: Callable[..., Any]
) -> None:
    group = make_group(2)
    leader = group.start(0)
    process = await start_process(group, 1)
    await group.until_ready()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert leader.state.failure is None
    assert not (group.folder / "state-1" / "rank.pid").exists()


async def test_a_setting_of_mlx_that_one_pod_has_is_refused_unless_the_plan_sets_it(
    make_group: Callable[..., Any], start_process: Callable[..., Any]
) -> None:
    """The environment of a pod comes from its image, or from what changes pods before they are stored."""
    group = make_group(2)
    leader = group.start(0)
    process = await start_process(group, 1, MLX_MAX_OPS_PER_BUFFER="7")
    await group.until(lambda: "refused" in leader.state.ranks[1].message, "rank 1 is refused")
    assert leader.state.ranks[1].message.startswith(
        'refused: EnvironmentDiffers: MLX_MAX_OPS_PER_BUFFER is not set on studio-0 (rank 0) and "7" on studio-1 (rank 1): '
    )
    assert leader.state.message.endswith(leader.state.ranks[1].message.removeprefix("refused: "))
    process.kill()
    await process.wait()
    await group.end()
    settings = RuntimePlan(environment={"MLX_MAX_OPS_PER_BUFFER": "50"})
    group.plan = group.plan.model_copy(update={"runtime": settings})
    group.start(0)
    await start_process(group, 1, MLX_MAX_OPS_PER_BUFFER="7")
    await group.until_ready()


def test_mlx_gets_the_settings_of_its_pod_and_the_plan_takes_precedence() -> None:
    pod = {"PATH": "/bin", "MLX_RANK": "7", "MLX_ENABLE_TF32": "1", "MLX_DISABLE_COMPILE": "1", "MLX_BFS_MAX_WIDTH": "3"}
    assert rankprocess.mlx_settings(pod, {"MLX_DISABLE_COMPILE": "0", "MLX_SDPA_BLOCKS": "2"}) == {
        "MLX_BFS_MAX_WIDTH": "3",
        "MLX_DISABLE_COMPILE": "0",
        "MLX_SDPA_BLOCKS": "2",
    }


def test_a_rank_gets_its_group_only_from_its_supervisor() -> None:
    said = {"MLX_RANK": "7", "MLX_HOSTFILE": "/h", "MLX_JACCL_RING": "1", "JACCL_X": "1", "THUNDERFLEET_RANK_FD": "9"}
    kept = {"PATH": "/bin", "MLX_DISABLE_COMPILE": "1", "MLX_MAX_OPS_PER_BUFFER": "50"}
    found = rankprocess.rank_environment({**said, **kept}, 5)
    assert kept.items() <= found.items() and found["THUNDERFLEET_RANK_FD"] == "5"
    assert not {"MLX_RANK", "MLX_HOSTFILE", "MLX_JACCL_RING", "JACCL_X"} & found.keys()
    assert rankprocess.ignored_variables({**said, **kept}) == ["JACCL_X", "MLX_HOSTFILE", "MLX_JACCL_RING", "MLX_RANK"]


def test_the_supervisor_imports_no_mlx_and_no_tokenizer() -> None:
    home = Path(thunderfleet_runner.__file__).parent
    paths = [path.relative_to(home) for room in ("group", "net", "host", "api") for path in (home / room).rglob("[a-z]*.py")]
    modules = [".".join(path.with_suffix("").parts) for path in paths]
    assert {"group.member", "net.control", "host.preflight", "api.http.gateway"} <= set(modules)
    code = (
        "import sys, thunderfleet_runner.cli, thunderfleet_runner.supervisor\n"
        + "".join(f"import thunderfleet_runner.{module}\n" for module in modules)
        + "print(sorted({'mlx', 'mlx_lm', 'transformers', 'tokenizers', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
