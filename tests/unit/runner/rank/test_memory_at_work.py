"""The peak memory of a rank stays within the planner's reservation: weights, caches, one prefill step."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.sizing import command

LAYERS = 4
CONTEXT = 2100
REQUESTS = 4
CACHED = 3000

# A separate process, because MLX counts its peak for the whole process.
PROGRAM = """
import json, random, sys
from pathlib import Path
import mlx.core as mx
from thunderfleet_runner import protocol
from thunderfleet_runner.rank import loading, mlxlm
from thunderfleet_runner.rank.engine import Engine
from thunderfleet_runner.rank.step_clock import StepClock

folder, context, requests, cached = Path(sys.argv[1]), *map(int, sys.argv[2:])
loaded = loading.load(folder, report=lambda *_: None)
said = []
provider = mlxlm.Provider(loaded.model, loaded.tokenizer, "m", sequences=requests)
engine = Engine(provider, StepClock(), lambda *messages: said.extend(messages), group=None, vocabulary=256,
                memory_tokens=cached, context=context, share_tokens=False, equal_logits=False, trimmable=True,
                formats=None)
source, number = random.Random(1), 0


def ask(prompt, answer):
    global number
    number += 1
    tokens = tuple(source.randrange(4, 250) for _ in range(prompt))
    engine.generate(protocol.Request(id=str(number), prompt=protocol.Prompt.of(tokens), max_tokens=answer, no_end=True))


inner = engine.asleep
# All that is admitted at once, all of it long; then short ones that are prefilled together; then long ones beside short ones.
waves = [[(context - 9, 9)] * requests, [(30, 20)] * requests, [(context - 9, 9), (20, 40), (context - 5, 5), (60, 9)]]


def asleep():
    if waves:
        for prompt, answer in waves.pop(0):
            ask(prompt, answer)
        return True
    return inner()


engine.asleep = asleep
mx.clear_cache()
mx.reset_peak_memory()
engine.command(protocol.Check())
engine.command(protocol.Stop())
engine.run()
done = [message for message in said if isinstance(message, protocol.Done)]
print(json.dumps({"peak": mx.get_peak_memory(), "done": len(done), "asked": number, "active": mx.get_active_memory()}))
"""


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    tinymodel.make(tmp_path, layers=LAYERS)
    return tmp_path


def test_the_busiest_rank_stays_within_its_reservation(deep: Path) -> None:
    arguments = [str(deep), str(CONTEXT), str(REQUESTS), str(CACHED)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["done"] == found["asked"] == 3 * REQUESTS

    model = command.size(deep, (1,))
    per_token = sum(layer.bytes_per_token for layer in model.kv)
    caches = per_token * (REQUESTS * CONTEXT + CACHED)
    step = (model.prefill_workspace_bytes or 0) + (model.prefill_workspace_bytes_per_token or 0) * CONTEXT
    planned = model.bytes + caches + step
    # Without the planner's default headroom of a tenth, which is for unplanned memory.
    assert found["peak"] <= planned, (found, model.bytes, caches, step)
    assert found["peak"] > model.bytes + caches // 2, "nothing was at work: the bound says nothing"
