"""mlx-lm with our changes: the only package that uses its private names, so that a new mlx-lm changes one package.

``ResponseGenerator`` is mlx-lm's serving loop: continuous batching, prompt cache, reasoning and tool parsing. We override what
does not fit a group of ranks:

- it polls its peers all the time; here an idle group waits outside of any collective until a turn is announced;
- it shares requests as pickles, which run code of anyone who reaches the group's ports; here they are JSON;
- it lets every rank render and tokenize; here rank 0's intake does, and all ranks use its tokens (templates may print today's
  date);
- it looks for new requests and cancels twice a second; here a flag accompanies every step, read one step later so that nothing
  waits for it, with a digest of what each rank has sampled: ranks that differ are noticed instead of blocking each other;
- an exact hit in its prompt cache makes it fail; here at least one token is always computed;
- it sets the wired limit to the device's maximum; here the rank sets it.

models    loading, layers, caches and limits of a model
work      one request as every rank gets it
families  formats of chats that mlx-lm does not support
items     what the loop reports about a request
embedding  embeddings of texts
batching/  what the loop does for the requests of a batch
loop      the serving loop
tokenizing  prompts in tokens, for the intake
generate  the module ``mlx_lm.generate``
importing  makes importing mlx-lm faster
latenames  lets libraries that a rank hardly ever uses load when they are used
"""

from thunderfleet_runner.rank.mlxlm import families, importing, latenames
from thunderfleet_runner.rank.mlxlm.batching.pipelines import evaluate_apart
from thunderfleet_runner.rank.mlxlm.batching.prompts import PromptCache
from thunderfleet_runner.rank.mlxlm.batching.steps import PREFILL_STEP, Sink, Source
from thunderfleet_runner.rank.mlxlm.embedding import CannotEmbed
from thunderfleet_runner.rank.mlxlm.items import (
    Admitted,
    Broken,
    Embedded,
    Finished,
    Prefilling,
    Sampled,
    TextMachine,
    call_format,
    classify,
    parse_tools,
)
from thunderfleet_runner.rank.mlxlm.loop import Diverged, Loop, Provider
from thunderfleet_runner.rank.mlxlm.models import (
    always_trimmable,
    architecture,
    build,
    forbid_trimming,
    forget_wired_limit,
    layers,
    load_lazily,
    load_tokenizer,
    prompt_cache,
    vocabulary,
)
from thunderfleet_runner.rank.mlxlm.tokenizing import Tokenizing
from thunderfleet_runner.rank.mlxlm.work import Sampling, Work

VERSION = "0.32.2"
"""The mlx-lm version that this package is written for and the contract test runs against."""

__all__ = [
    "PREFILL_STEP",
    "VERSION",
    "Admitted",
    "Broken",
    "CannotEmbed",
    "Diverged",
    "Embedded",
    "Finished",
    "Loop",
    "Prefilling",
    "PromptCache",
    "Provider",
    "Sampled",
    "Sampling",
    "Sink",
    "Source",
    "TextMachine",
    "Tokenizing",
    "Work",
    "always_trimmable",
    "architecture",
    "build",
    "call_format",
    "classify",
    "evaluate_apart",
    "families",
    "forbid_trimming",
    "forget_wired_limit",
    "importing",
    "latenames",
    "layers",
    "load_lazily",
    "load_tokenizer",
    "parse_tools",
    "prompt_cache",
    "vocabulary",
]
