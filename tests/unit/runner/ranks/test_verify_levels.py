"""What each value of ``spec.verify`` makes real ranks do. They note what they run; no setting and no message is looked at."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import MemoryPlan, ProvenLengths
from thunderfleet_crds.vocabulary import Verify
from thunderfleet_runner import protocol
from thunderfleet_runner.host import preflight
from thunderfleet_runner.host.rankprocess import RANK_MODULE

from tests.support.models import copymodel

pytestmark = pytest.mark.usefixtures("without_compiler")

VOCABULARY = 1000
SECONDS = 120.0
PROGRAM = """
import os, sys
from pathlib import Path
from thunderfleet_runner.rank import __main__, rank

notes = Path(os.environ["THUNDERFLEET_TEST_FOLDER"]) / ("notes-" + sys.argv[-1])

def note(where, name, what):
    right = getattr(where, name)
    def call(*arguments, **options):
        with notes.open("a") as file:
            print(what, file=file)
        return right(*arguments, **options)
    setattr(where, name, call)

proves, loads = rank.Rank._prove, rank.Rank._load

def prove(self, *arguments):
    from thunderfleet_runner.rank.checks import connections as proof
    note(proof._Prover, "round", "exchange")
    return proves(self, *arguments)

def load(self, *arguments):
    # Not before init, whose deadline these imports would take.
    from thunderfleet_runner.rank import engine
    from thunderfleet_runner.rank.checks import kernels, layers
    from thunderfleet_runner.rank.mlxlm.batching.logits import LogitsHash
    note(kernels, "_product", "product")
    note(layers, "check", "layers")
    note(LogitsHash, "of", "logits")
    note(engine.Engine, "generate", "request")
    return loads(self, *arguments)

rank.Rank._prove, rank.Rank._load = prove, load
sys.exit(__main__.main())
"""


def command(group: str, epoch: int, rank: int) -> list[str]:
    return [sys.executable, "-P", "-c", PROGRAM, RANK_MODULE, "--group", group, "--rank", str(rank)]


CHECKS = {
    Verify.FULL: {"exchange", "product", "layers", "logits"},
    Verify.QUICK: {"exchange"},
    Verify.NONE: set[str](),
}


@pytest.mark.parametrize("verify", Verify)
async def test_ranks_run_the_checks_of_their_level_and_no_others(
    make_group: Callable[..., Any], tmp_path: Path, verify: Verify
) -> None:
    """Two ranks, a model that has continued a passage before, and one request."""
    copymodel.make(tmp_path / "copier", VOCABULARY)
    group = make_group(2)
    plan = group.plan.model_copy(update={"model_path": str(tmp_path / "copier"), "verify": verify})
    ranks = tuple(rank.model_copy(update={"memory_bytes": 64 << 20}) for rank in plan.ranks)
    proven = ProvenLengths(digest=preflight.digest(plan), lengths=(300,))
    memory = MemoryPlan(context_tokens=1024, concurrent_requests=2, cached_tokens=1024)
    group.plan = plan.model_copy(update={"proven_lengths": proven, "memory": memory, "ranks": ranks})
    for rank in range(2):
        group.start(rank, command=command)
    await group.until_ready()
    request = protocol.Request(id="one", prompt=protocol.Prompt.of((1, 2, 3)), max_tokens=3)
    async with asyncio.timeout(SECONDS):
        tokens = [event async for event in group.running[0][0].service.submit(request) if isinstance(event, protocol.Token)]
    assert tokens, "the ranks work, and note it"
    for rank in range(2):
        notes = group.faults / f"notes-{rank}"
        done = Counter(notes.read_text().split() if notes.exists() else [])
        # Rank 0 gets the requests: the passages before the group serves, and then the client's.
        requests = done.pop("request", 0)
        assert set(done) == CHECKS[verify], (rank, done)
        assert (requests > 1) is (rank == 0 and verify is Verify.FULL), requests
