"""Vectors of texts: held against an independent implementation, on real groups of ranks."""

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thunderfleet_lib.httpapi import routed
from thunderfleet_runner import protocol
from thunderfleet_runner.api.embed import MAX_TEXTS
from thunderfleet_runner.api.http.embeddings import ROWS, batches
from thunderfleet_runner.intake.pooling import vector_size
from thunderfleet_runner.rank import mlxlm
from transformers import AutoTokenizer

from tests.support.generated import FUZZ, examples
from tests.support.models import embeddingmodel
from tests.support.suite.later import Later
from tests.support.waiting import until_async

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

MODEL = "org/Qwen3-Embedding-tiny"
TEXTS = ["Hello", "Which Macs are wired together?", "a", "x" * 700, "Which Macs are wired together!"]
LAST = {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
EXAMPLES = examples(10) // 10 if FUZZ else 10
CONTEXT = 4096
"""More than the tokens of one step."""
CLOSE = 2e-5
"""Single precision against double, over three layers."""


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "embedder"
    embeddingmodel.make(folder)
    return folder


async def asked(client: aiohttp.ClientSession, **body: Any) -> tuple[int, Any]:
    async with asyncio.timeout(60), client.post("/v1/embeddings", json=body) as response:
        return response.status, await response.json()


def tokens(folder: Path, text: str) -> list[int]:
    """As the model card does: with the token that the tokenizer adds."""
    found: list[int] = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    assert found[-1] == embeddingmodel.END
    return found


async def check_vectors(group: Any, client: aiohttp.ClientSession, embedder: Path) -> None:
    """They are those of an independent implementation."""
    right = [embeddingmodel.vector(tokens(embedder, text)) for text in TEXTS]
    status, answer = await asked(client, model=MODEL, input=TEXTS)
    assert status == 200, answer
    found = numpy.array([entry["embedding"] for entry in answer["data"]])
    assert [entry["index"] for entry in answer["data"]] == list(range(len(TEXTS)))
    numpy.testing.assert_allclose(found, right, atol=CLOSE)
    # The texts are not all alike: a wrong token's state would be far away.
    assert numpy.abs(found[1] - found[4]).max() > 100 * CLOSE
    count = sum(len(tokens(embedder, text)) for text in TEXTS)
    assert answer["model"] == MODEL and answer["usage"] == {"prompt_tokens": count, "total_tokens": count}

    # Beyond one step, in token ids, and beside an answer of the same group.
    long = [(7 * place) % 250 + 4 for place in range(2100)]
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
    (_, alone), talk = await asyncio.gather(
        asked(client, model="tiny", input=[long, long[:5]]), client.post("/v1/chat/completions", json=chat)
    )
    assert talk.status == 200 and (await talk.json())["usage"]["completion_tokens"] > 0
    for entry, ids in zip(alone["data"], (long, long[:5]), strict=True):
        numpy.testing.assert_allclose(entry["embedding"], embeddingmodel.vector(ids), atol=CLOSE)

    _, short = await asked(client, input="Hello", dimensions=20)
    numpy.testing.assert_allclose(
        short["data"][0]["embedding"], embeddingmodel.vector(tokens(embedder, "Hello"), 20), atol=CLOSE
    )
    assert group.running[0][0].state.recoveries == 0


async def check_clients_and_bodies(client: aiohttp.ClientSession) -> None:
    refused: dict[str, tuple[Any, ...]] = {
        "input": (None, "", [], [""], [[]], 5, {"a": 1}, ["a", 5], [1.5], [True], [[1], [256]], [-1], [[1, "a"]],
                  ["a"] * (MAX_TEXTS + 1)),
        "dimensions": (0, 65, -1, "20", 1.5, True),
        "encoding_format": ("int8", 5),
        "truncate_prompt_tokens": (5,),
    }  # fmt: skip
    async with openai.AsyncOpenAI(base_url=f"{str(client._base_url).rstrip('/')}/v1", api_key="none") as sdk:
        # The SDK asks for base64 unless it is told otherwise.
        packed = await sdk.embeddings.create(model=MODEL, input=TEXTS[:3], dimensions=32)
        plain = await sdk.embeddings.create(model=MODEL, input=TEXTS[:3], dimensions=32, encoding_format="float")
        for one, other in zip(packed.data, plain.data, strict=True):
            numpy.testing.assert_allclose(one.embedding, other.embedding, atol=1e-9)
            assert len(one.embedding) == 32 and abs(numpy.linalg.norm(one.embedding) - 1) < 1e-5
    status, raw = await asked(client, input="Hello", encoding_format="base64")
    vector = numpy.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    assert status == 200 and len(vector) == embeddingmodel.HIDDEN
    for name, values in refused.items():
        for value in values:
            status, answer = await asked(client, **({"model": MODEL, "input": "a"} | {name: value}))
            assert status == 400 and answer["error"]["message"], (name, value)
    status, answer = await asked(client, model="gpt-5", input="a")
    assert status == 404 and answer["error"]["code"] == "model_not_found"
    status, answer = await asked(client, input=["a", "a" * (CONTEXT + 1)])
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    async with client.post("/v1/embeddings", json={"input": "a", "task": "x", "user": "u"}) as response:
        assert response.status == 200 and response.headers["X-Thunderfleet-Ignored"] == "task"
    async with client.post("/v1/embeddings", json={"input": "a"}, headers={routed.ROUTED: "1"}) as response:
        assert response.headers[routed.TOKENS] == f"{(await response.json())['usage']['prompt_tokens']},0"
    many = await asked(client, input=["a b"] * 300)
    assert many[0] == 200 and len({json.dumps(entry["embedding"]) for entry in many[1]["data"]}) <= 2


_INPUT = (
    st.text("abc é\n", max_size=20)
    | st.lists(st.text("abc", max_size=9) | st.lists(st.integers(-1, 256), max_size=5), max_size=4)
    | st.lists(st.integers(0, 255), min_size=1, max_size=600)
    | st.just([7] * (CONTEXT + 1))
    | st.none()
    | st.integers()
)
_BODIES = st.fixed_dictionaries(
    {"input": _INPUT},
    optional={
        "dimensions": st.integers(-1, 66) | st.floats(), "encoding_format": st.sampled_from(["float", "base64", "x", 1]),
        "model": st.sampled_from([MODEL, "tiny"]), "user": st.text(max_size=3),
    },
)  # fmt: skip


async def check_no_request_ends_a_group(group: Any, client: Any) -> None:
    pids = [supervisor.member.pid for supervisor, _ in group.running.values()]
    right = (await asked(client, input=TEXTS[:3]))[1]["data"]
    seen: set[int] = set()

    async def together(bodies: list[dict[str, Any]]) -> None:
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 1}
        talk = client.post("/v1/chat/completions", json=chat)
        *answers, talked = await asyncio.gather(*(asked(client, **body) for body in bodies), talk)
        assert talked.status == 200
        assert {status for status, _ in answers} <= {200, 400}, (bodies, answers)
        seen.update(status for status, _ in answers)

    loop = asyncio.get_running_loop()

    @settings(max_examples=EXAMPLES, database=None, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(bodies=st.lists(_BODIES, min_size=4, max_size=4))
    def explore(bodies: list[dict[str, Any]]) -> None:
        asyncio.run_coroutine_threadsafe(together(bodies), loop).result(120)

    await asyncio.to_thread(explore)
    assert seen == {200, 400}
    # A client that leaves: what is computed for it disturbs no other.
    leaving = asyncio.create_task(asked(client, input=["a b c"] * 600))
    await until_async(lambda: group.running[0][0].service.running, "the vectors are being computed")
    leaving.cancel()
    for found, expected in zip((await asked(client, input=TEXTS[:3]))[1]["data"], right, strict=True):
        numpy.testing.assert_allclose(found["embedding"], expected["embedding"], atol=1e-6)
    assert [supervisor.member.pid for supervisor, _ in group.running.values()] == pids
    assert group.running[0][0].state.recoveries == 0


@pytest.mark.hypothesis
@pytest.mark.parametrize(("size", "split"), [(1, "None"), (2, "Tensor")])
async def test_vectors_are_right_and_no_request_for_them_ends_a_group(
    served: Callable[..., Any], embedder: Path, size: int, split: str
) -> None:
    memory = {"contextTokens": CONTEXT}
    async with served(embedder, size, split, plan={"model": MODEL}, memory=memory) as (group, client):
        await check_vectors(group, client, embedder)
        if size == 1:
            await check_clients_and_bodies(client)
        else:
            await check_no_request_ends_a_group(group, client)


async def test_a_pipeline_says_what_to_do(served: Callable[..., Any], tiny: Path, embedder: Path) -> None:
    async with served(tiny, 2, "Pipeline", plan={"model": MODEL}) as (_, client):
        status, answer = await asked(client, input="a")
        assert status == 404 and "cannot compute embeddings" in answer["error"]["message"]


def test_which_models_make_vectors() -> None:
    qwen = {"model_type": "qwen3", "hidden_size": 64}
    assert vector_size(qwen, None, "org/Qwen3-Embedding-0.6B-4bit") == 64
    assert vector_size(qwen, LAST, "any/name") == 64
    for config, pooling, name, why in (
        (qwen, None, "org/Qwen3-8B", "no 1_Pooling"),
        (qwen, None, "Embedding/Qwen3-8B", "no 1_Pooling"),
        (qwen, LAST | {"pooling_mode_mean_tokens": True}, "org/Embedding", "pooling_mode_mean_tokens"),
        (qwen, {}, "org/Embedding", "requires nothing"),
        ({"model_type": "bert", "hidden_size": 64}, LAST, "org/Embedding", "generates text"),
        ({"model_type": "qwen3", "hidden_size": "x"}, LAST, "org/Embedding", "generates text"),
    ):
        found = vector_size(config, pooling, name)
        assert isinstance(found, str) and why in found, found


def test_alike_texts_are_computed_together() -> None:
    lengths = [5, 3000, 700, 5, 900, 6, 700]
    found = batches(lengths)
    assert sorted(place for together in found for place in together) == list(range(len(lengths)))
    assert found == [[0, 3, 5], [2, 6], [4], [1]]
    assert batches([]) == [] and [len(one) for one in batches([1] * 130)] == [ROWS, ROWS, 2]
    assert protocol.EMBED_TOKENS == mlxlm.PREFILL_STEP
