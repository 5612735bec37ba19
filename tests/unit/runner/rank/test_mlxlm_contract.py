"""What ``mlxlm`` assumes about the internals of mlx-lm, checked with the installed version: a new version fails here first."""

import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import server
from mlx_lm.models import cache
from thunderfleet_runner.api.request.templates import RESERVED
from thunderfleet_runner.rank import mlxlm
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

GENERATE: Any = sys.modules["mlx_lm.generate"]


def test_the_pinned_version_is_installed() -> None:
    assert version("mlx-lm") == mlxlm.VERSION


# What transformers offers, and how often it found a folder's files among those that it had read before.
IMPORTED = """
import json, sys
if sys.argv[1] == "ours":
    # It imports more than a rank does, in another order.
    import thunderfleet_runner.intake.tokenizer
import transformers
from transformers import AutoTokenizer
from transformers.utils import import_utils
imported = import_utils.create_import_structure_from_path.cache_info().misses
one = transformers.Qwen2Tokenizer.__module__
first = import_utils.create_import_structure_from_path.cache_info().misses
odd = [hasattr(transformers, "NoSuchTokenizer")]
names = [sorted(module.__all__) for module in (transformers, transformers.models)]
read = import_utils.create_import_structure_from_path.cache_info()
offered = [{name: module._class_to_module[name] for name in sorted(module._class_to_module)} for module in
           (transformers, transformers.models)]
missing = [{name: sorted(needs) for name, needs in module._object_missing_backend.items()} for module in
           (transformers, transformers.models)]
odd += [transformers.Qwen2TokenizerFast.__name__, transformers.LlamaModel.__module__, transformers.models.llama.__name__]
reader = import_utils.fetch__all__.__module__
print(json.dumps({"offered": [offered, missing, names, odd, one], "read": read.misses, "known": read.hits, "reader": reader,
                  "first": first, "loads": first - imported}))
"""


def test_transformers_offers_the_same_and_reads_each_folder_once_or_when_it_is_asked_for() -> None:
    plain, ours = (
        json.loads(subprocess.run([sys.executable, "-c", IMPORTED, who], capture_output=True, check=True, timeout=60).stdout)
        for who in ("plain", "ours")
    )
    assert ours["offered"] == plain["offered"] and len(ours["offered"][0][1]) > 1000
    # A tokenizer's own packages read their folders, with either.
    assert plain["known"] == 0 and ours["read"] - plain["loads"] <= (plain["read"] - plain["loads"]) / 2 + 2
    assert ours["known"] > 500
    assert plain["first"] > 500 and ours["first"] < 10
    assert plain["reader"] == "transformers.utils.import_utils" and ours["reader"] == mlxlm.importing.__name__


HUB = """
import inspect, json, sys
from thunderfleet_runner.rank import mlxlm
names = ("httpx2._client", "httpcore2", "anyio", "huggingface_hub._jobs_api", "jinja2", "yaml", "filelock")
loaded = [name for name in names if name in sys.modules]
from huggingface_hub.utils._shared_blobs import SHARED_BLOBS_DIR_NAME
from huggingface_hub.utils import SoftTemporaryDirectory, WeakFileLock
from transformers.tokenization_utils_base import render_jinja_template
parameters = [*inspect.signature(render_jinja_template).parameters]
from transformers.utils.chat_template_utils import _CONTROL_TOKEN_START
constants = [type(one).__name__ for one in (SHARED_BLOBS_DIR_NAME, _CONTROL_TOKEN_START)]
rendered, _ = render_jinja_template([[{"role": "user", "content": "hi"}]], chat_template="{{ messages[0].content }}")
from huggingface_hub.errors import HfHubHTTPError
from transformers.utils import hub
api = hub.HfApi(token=False)
real = [isinstance(api, hub.HfApi), isinstance(hub, hub.HfApi), type(api).__module__, hub.HfApi.list_models.__name__]
try:
    hub.httpx.Client(trust_env=False).get("http://127.0.0.1:1")
except hub.httpx.ConnectError as error:
    real += [type(error).__module__, issubclass(HfHubHTTPError, hub.httpx.HTTPError)]
with SoftTemporaryDirectory() as folder, WeakFileLock(folder / "lock"):
    real.append((folder / "lock").exists())
read = [name in sys.modules for name in names]
found = {"loaded": loaded, "rendered": rendered, "real": real, "read": read}
print(json.dumps(found | {"constants": constants, "parameters": parameters}))
"""


def test_what_ranks_do_not_use_loads_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", HUB], capture_output=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    assert found["loaded"] == [] and found["rendered"] == ["hi"]
    assert found["real"] == [True, False, "huggingface_hub.hf_api", "list_models", "httpx2", True, True]
    assert set(found["read"]) == {True}, found["read"]
    assert found["constants"] == ["str", "str"] and "chat_template" in found["parameters"]


def test_the_loop_still_asks_and_answers_as_it_did() -> None:
    source = inspect.getsource(server.ResponseGenerator._generate)
    for expected in (
        "self.model_provider.load_default()",
        "self._next_request(timeout)",
        "else 0.1",
        "for _ in self._time_budget:",
        "batch_generator = BatchGenerator(",
        "uids_to_remove = self._share_object(uids_to_remove)",
        'result["ctx"]._should_stop',
        "self.prompt_cache.fetch_nearest_cache(",
        "self._make_state_machine(",
        "while not self._stop:",
        "samplers=[_make_sampler(args, current_tokenizer)]",
    ):
        assert expected in source, expected


def test_what_is_served_alone_still_gives_its_sink_every_item_and_every_error() -> None:
    source = inspect.getsource(server.ResponseGenerator._serve_single)
    for expected in (
        "for gen in stream_generate(",
        "sampler = _make_sampler(args, tokenizer)",
        "prompt_progress_callback=progress",
        "rqueue.put(None)",
        "except Exception as e:\n            rqueue.put(e)",
    ):
        assert expected in source, expected


def test_nothing_of_the_base_is_left_unset() -> None:
    """Our __init__ does not call the base's, which starts a thread: every attribute that it sets must be set or unused."""
    base = inspect.getsource(server.ResponseGenerator.__init__)
    ours = inspect.getsource(mlxlm.Loop.__init__)
    names = {line.split("=")[0].strip() for line in base.splitlines() if line.strip().startswith("self.") and "=" in line}
    unused = {"self._generation_failed", "self._generation_thread"}
    missing = {name for name in names - unused if f"{name} " not in ours and f"{name}:" not in ours}
    assert not missing


@pytest.mark.parametrize("name", ["_next_request", "_share_object", "_tokenize", "_make_state_machine", "_log_cache_stats"])
def test_what_is_overridden_is_still_there_with_its_parameters(name: str) -> None:
    base = list(inspect.signature(getattr(server.ResponseGenerator, name)).parameters)
    assert list(inspect.signature(getattr(mlxlm.Loop, name)).parameters) == base


def test_arguments_are_passed_by_position_where_it_has_not_changed() -> None:
    def fields(kind: Any) -> list[str]:
        return [name for name in inspect.signature(kind).parameters]

    assert fields(server.SamplingArguments)[:4] == ["temperature", "top_p", "top_k", "min_p"]
    assert fields(server.LogitsProcessorArguments) == [
        "logit_bias", "repetition_penalty", "repetition_context_size", "presence_penalty", "presence_context_size",
        "frequency_penalty", "frequency_context_size",
    ]  # fmt: skip
    assert fields(server.CompletionRequest) == ["request_type", "prompt", "messages", "tools", "role_mapping"]
    assert set(fields(server.GenerationArguments)) == {
        "model", "sampling", "logits", "stop_words", "max_tokens", "num_draft_tokens", "logprobs", "top_logprobs", "seed",
        "chat_template_kwargs",
    }  # fmt: skip


def test_the_batch_and_the_cache_have_what_is_read_of_them() -> None:
    assert {"next", "insert_segments"} <= set(vars(server.BatchGenerator))
    assert "_unprocessed_sequences" in inspect.getsource(GENERATE.BatchGenerator.__init__)
    assert "_prompt_batch" in inspect.getsource(GENERATE.BatchGenerator.__init__)
    assert hasattr(GENERATE, "greedy_sampler") and GENERATE.StopSequences().matcher().advance(3) is False
    assert "can_trim_prompt_cache" in inspect.getsource(cache.LRUPromptCache.fetch_nearest_cache)
    assert cache.LRUPromptCache(3)._lru._lrus.keys() == {"assistant", "user", "system"}


def test_mlx_lm_leaves_the_wired_limit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (GENERATE, server, sys.modules["mlx_lm.utils"]):
        monkeypatch.setattr(module, "maybe_set_recommended_wired_limit", lambda: 5)
    mlxlm.forget_wired_limit()
    assert GENERATE.maybe_set_recommended_wired_limit() is None
    assert server.maybe_set_recommended_wired_limit() is None


def test_requests_cannot_set_what_the_renderer_of_chats_takes_from_the_server() -> None:
    renderers = (PreTrainedTokenizerBase.apply_chat_template, chat_template_utils.render_jinja_template)
    names = {name for renderer in renderers for name in inspect.signature(renderer).parameters}
    assert names <= RESERVED


def test_queue_items_are_classified() -> None:
    assert mlxlm.classify(None) == mlxlm.Finished()
    assert isinstance(mlxlm.classify((1, 2)), mlxlm.Prefilling)
    assert isinstance(mlxlm.classify(ValueError("x")), mlxlm.Broken)
    sampled = mlxlm.classify(server.Response("a", 3, -0.5, None, ({"id": 4, "token": "b", "logprob": -1.0},)))
    assert sampled == mlxlm.Sampled(3, "a", -0.5, None, ((4, -1.0),))
    with pytest.raises(TypeError):
        mlxlm.classify("odd")


def test_work_survives_its_way_through_json() -> None:
    work = mlxlm.Work(
        id="a", segments=((1, 2), (3,)), segment_types=("system", "user"), initial_state="normal", max_tokens=5,
        sampling=mlxlm.Sampling(temperature=0.5, logit_bias={7: -1.0}), cache=False, ends=False,
    )  # fmt: skip
    import json

    assert mlxlm.Work.from_json(json.loads(json.dumps(work.to_json()))) == work
    assert work.prompt == [1, 2, 3]


class _KV:
    """The attributes of a layer's cache that the prompt cache uses."""

    nbytes = 4
    state: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.trimmed = 0

    def is_trimmable(self) -> bool:
        return True

    def trim(self, count: int) -> int:
        self.trimmed += count
        return count


def test_the_prompt_cache_always_leaves_a_token_to_compute() -> None:
    kept = mlxlm.PromptCache(tokens=100, trimmable=True)
    kept.insert_cache("m", [1, 2, 3], [_KV()])
    found, rest = kept.fetch_nearest_cache("m", [1, 2, 3])
    assert rest == [3] and found[0].trimmed == 1
    kept.bypass = True
    assert kept.fetch_nearest_cache("m", [1, 2, 3]) == (None, [1, 2, 3])


def test_the_prompt_cache_is_bounded_in_tokens_and_can_be_passed_by() -> None:
    kept = mlxlm.PromptCache(tokens=10, trimmable=True)
    for first in range(5):
        kept.insert_cache("m", [first] * 4, [_KV()])
    assert len(kept) == 2
    kept.uncached.append([9, 9, 9])
    kept.insert_cache("m", [9, 9, 9, 5], [_KV()])
    kept.insert_cache("m", [9, 9], [_KV()])
    assert kept.fetch_nearest_cache("m", [9, 9, 9])[0] is None
    nothing = mlxlm.PromptCache(tokens=0, trimmable=True)
    nothing.insert_cache("m", [1], [_KV()])
    assert len(nothing) == 0


def _kept(length: int) -> Any:
    """A cache of this many tokens, of two rows each."""
    entry = cache.KVCache()
    entry.update_and_fetch(*(mx.arange(2.0 * length).reshape(1, 1, length, 2) for _ in range(2)))
    return entry


def test_the_newest_sequence_stays_however_long_it_is() -> None:
    kept = mlxlm.PromptCache(tokens=10, trimmable=True)
    kept.insert_cache("m", [1] * 4, [_kept(4)], cache_type="user")
    kept.insert_cache("m", [2] * 9, [_kept(9)])
    assert len(kept) == 1 and kept.fetch_nearest_cache("m", [2] * 12)[1] == [2] * 3
    # Longer than all of the cache: its beginning stays, and its arrays are as small.
    kept.insert_cache("m", [3] * 14, [_kept(14)])
    (found,), rest = kept.fetch_nearest_cache("m", [3] * 15)
    assert rest == [3] * 5 and found.offset == 10 and found.keys.shape == found.values.shape == (1, 1, 10, 2)
    assert found.keys[0, 0, 9].tolist() == [18.0, 19.0] and len(kept) == 1
    more, _ = found.update_and_fetch(*(mx.ones((1, 1, 1, 2)) for _ in range(2)))
    assert more[0, 0].tolist()[9:] == [[18.0, 19.0], [1.0, 1.0]]


def test_a_sequence_that_cannot_be_cut_leaves_the_others_alone() -> None:
    kept = mlxlm.PromptCache(tokens=10, trimmable=False)
    kept.insert_cache("m", [1] * 4, [_KV()])
    kept.insert_cache("m", [2] * 11, [_KV()])
    assert len(kept) == 1 and kept.fetch_nearest_cache("m", [1] * 5)[1] == [1]


@pytest.mark.parametrize("kind", ["assistant", "user", "system"])
def test_old_sequences_of_other_kinds_go_before_the_newest(kind: str) -> None:
    kept = mlxlm.PromptCache(tokens=1000, trimmable=True)
    others = [other for other in ("assistant", "user", "system") if other != kind]
    for number in range(30):
        kept.insert_cache("m", [number, 0], [_kept(2)], cache_type=others[number % 2])
    kept.insert_cache("m", [99, 0], [_kept(2)], cache_type=kind)
    assert len(kept) == 10 and kept.fetch_nearest_cache("m", [99, 0, 0])[1] == [0]


class _Sum:
    """A completed all-sum: the flag of rank 0, the same negated, and the sum of the ranks' digests."""

    def __init__(self, *values: int) -> None:
        self._values = list(values)

    def tolist(self) -> list[int]:
        return self._values


def _loop_of_two() -> Any:
    loop = object.__new__(mlxlm.Loop)
    loop._rank, loop._size, loop._digest = 1, 2, 1
    return loop


def test_a_digest_that_differs_ends_the_rank_before_another_step() -> None:
    loop = _loop_of_two()
    loop.digest(7, 42, 0)
    mine = loop._digest
    assert loop.read((_Sum(1, -1, 2 * mine), mine)) is True
    assert loop.read((_Sum(0, 0, 2 * mine), mine)) is False
    for flags in ((1, 0), (0, -1), (2, -2), (-1, 1)):
        with pytest.raises(mlxlm.Diverged, match="was corrupted on its way"):
            loop.read((_Sum(*flags, 2 * mine), mine))
    other = _loop_of_two()
    other.digest(7, 43, 0)
    with pytest.raises(mlxlm.Diverged, match="no longer compute the same"):
        loop.read((_Sum(0, 0, mine + other._digest), mine))


def test_the_digest_knows_tokens_ends_and_prefixes_in_their_order() -> None:
    def digest(*turns: tuple[int, int, int]) -> int:
        loop = _loop_of_two()
        for turn in turns:
            loop.digest(*turn)
        return int(loop._digest)

    found = [digest(), digest((1, 5, 0)), digest((1, 5, 1)), digest((2, 5, 0)), digest((1, 5, 0), (2, 6, 0))]
    found += [digest((2, 6, 0), (1, 5, 0)), digest((9, 0, 2), (1, 5, 0)), digest((8, 0, 2), (1, 5, 0))]
    assert len(set(found)) == len(found)
