"""A model whose answers are known in advance, served by a real group of two ranks.

The last token determines the next one. After a space it walks through its vocabulary forever; if the template has tools it
writes a call, or text that is not one; with much effort it thinks first.
"""

import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from safetensors.numpy import load_file, save_file
from thunderfleet_localcluster.models import tinymodel

from tests.support.suite.later import Later

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

MODEL = "thunderfleet/tiny"
KEY = "a-key-of-the-test"
WORDS = list(tinymodel.vocabulary())
CALL = '{"name":"weather","arguments":{"city":"Oslo"}}'
NO_CALL = "[5,{}]"
THOUGHT = "hmm"
ADDED = ("<tool_call>", CALL, "</tool_call>", "<tool_", "call>", NO_CALL, "<think>", THOUGHT, "</think>")
FIRST_ADDED = tinymodel.VOCABULARY - len(ADDED)
WALK = WORDS[4:FIRST_ADDED]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + ': ' + message.content }}"
    "{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}"
    "{{ '<tool_call>' + tool_call.name + '</tool_call>' }}{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}"
    # The last character tells the model what to do.
    "{{ ('`' if tools[0].function.name == 'bad' else '~') if tools else ' ' }}{% endif %}"
    "{% if add_generation_prompt and reasoning_effort == 'high' %}{{ '<think>' }}{% endif %}"
)


def _token(word: str) -> int:
    return FIRST_ADDED + ADDED.index(word) if word in ADDED else WORDS.index(word)


def _make_walker(tiny: Path, folder: Path) -> Path:
    """The tiny model without the effect of its layers: the embedding of each token selects the next one in the head."""
    shutil.copytree(tiny, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model = tokenizer["model"]
    model["vocab"] = {word: token for word, token in model["vocab"].items() if token < FIRST_ADDED}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"] += [{"id": _token(word), "content": word, **plain} for word in ADDED]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    following = {token: token + 1 if token + 1 < FIRST_ADDED else 4 for token in range(4, FIRST_ADDED)}
    chains = (
        ("~", "<tool_call>", CALL, "</tool_call>"),
        ("`", "<tool_", "call>", NO_CALL, "</tool_call>"),
        ("<think>", THOUGHT, "</think>", "Ġ"),
    )
    for chain in chains:
        following |= {_token(word): _token(after) for word, after in itertools.pairwise(chain)}
    following[_token("</tool_call>")] = WORDS.index("<|im_end|>")
    weights = load_file(folder / "model.safetensors")
    source = numpy.random.default_rng(7)
    embedding = source.standard_normal((tinymodel.VOCABULARY, tinymodel.HIDDEN)).astype(numpy.float32)
    embedding /= numpy.linalg.norm(embedding, axis=1, keepdims=True)
    head = numpy.zeros_like(embedding)
    for token, after in following.items():
        head[after] += embedding[token]
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = numpy.zeros_like(weights[name])
    weights |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def walked(count: int, start: int = 1) -> str:
    """The model's text after a space (``start`` 1), or from another place of its walk."""
    return "".join(WALK[(start + at) % len(WALK)].replace("Ġ", " ") for at in range(count))


@asynccontextmanager
async def walker(served: Callable[..., Any], tiny: Path, folder: Path) -> AsyncIterator[tuple[Any, "openai.AsyncOpenAI"]]:
    """A Ready group of two ranks with the walker model, an API key and room for long answers, and a client without retries."""
    memory = {"contextTokens": 30000, "concurrentRequests": 2}
    async with served(_make_walker(tiny, folder), 2, "Pipeline", memory=memory, api_keys=frozenset({KEY})) as (group, _):
        url = f"{group.running[0][0].service.leader_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60) as client:
            yield group, client
