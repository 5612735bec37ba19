"""The dry run's child: what it found before it ended is kept, and its limits hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from thunderfleet_crds.kinds.nodeprofile import KVLayer
from thunderfleet_crds.vocabulary import SizedBy
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.sizing import arithmetic, bounded, command, sizes
from thunderfleet_runner.sizing.arithmetic import Cache, Facts, Held, Node, Sample, Workspace
from thunderfleet_runner.sizing.bounded import Limits


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    tinymodel.make(tmp_path)
    return tmp_path


def test_a_child_that_takes_too_long_leaves_the_files(tiny: Path) -> None:
    found = command.size(tiny, range(1, 5), Limits(seconds=0.001))
    assert found.sized_by is SizedBy.FILES and [size.world_size for size in found.sizes] == [1]
    assert found.pipeline is not None and "did not complete within 0.001 s" in (found.pipeline.refusal or "")
    # Without a trace, an upper estimate from the configuration.
    assert len(found.kv) == tinymodel.LAYERS and all(layer.bytes_per_token > 0 for layer in found.kv)


def test_a_child_that_needs_too_much_memory_is_ended(tiny: Path) -> None:
    found = command.size(tiny, range(1, 5), Limits(resident_bytes=20 * 2**20))
    assert found.sized_by is SizedBy.FILES and found.pipeline is not None
    assert "mlx-lm's dry run" in (found.pipeline.refusal or "")


def test_what_was_found_before_the_end_is_kept() -> None:
    first = Facts(total_bytes=10, layers=2, layer_bytes=(4, 4), shared_bytes=2)
    second = Facts(total_bytes=10, layers=2, layer_bytes=(4, 4), shared_bytes=2, tensor={2: (6, 6), 3: "no"})
    lines = "\n".join(json.dumps(bounded.to_json(facts)) for facts in (first, second))
    kept = bounded._last((lines + '\n{"cut sho').encode(), "it was ended")
    assert kept == Facts(**{**vars(second), "ended": "it was ended"})
    model = sizes.by_mlx("/m", {"model_type": "x"}, kept, (1, 2, 3, 4))
    assert [size.tensor_bytes_per_rank for size in model.sizes] == [(10,), (6, 6), (), ()]
    assert [size.refusal for size in model.sizes] == [None, None, "no", "it was ended"]
    assert model.pipeline is not None and model.pipeline.refusal == "it was ended"


def test_before_the_layers_are_known_nothing_is_shared() -> None:
    model = sizes.by_mlx("/m", {"model_type": "x"}, Facts(ended="it was ended"), (1,))
    assert model.pipeline is not None and (model.pipeline.layer_bytes, model.pipeline.shared_bytes) == ((), 0)
    assert model.pipeline.refusal == "it was ended"


def test_facts_survive_the_pipe() -> None:
    facts = Facts(total_bytes=1, kv=(Cache(bytes_per_token=3, window_tokens=5),), workspace=Workspace(7, 8))
    assert bounded.from_json(json.loads(json.dumps(bounded.to_json(facts)))) == facts


def test_the_profile_has_what_the_dry_run_found_of_each_cache() -> None:
    caches = (Cache(1, 2, 3, tensor_split=True), Cache(fixed_bytes=4))
    model = sizes.by_mlx("/m", {"model_type": "x"}, Facts(total_bytes=1, kv=caches), (1,))
    assert model.kv == (
        KVLayer(fixed_bytes=1, bytes_per_token=2, window_tokens=3, tensor_split=True),
        KVLayer(fixed_bytes=4),
    )


@pytest.mark.parametrize("window", [2**31, 10**12])
@pytest.mark.parametrize("rest", [(0, 0), (10, 20)])
def test_a_window_that_no_sequence_fills_is_none(window: int, rest: tuple[int, int]) -> None:
    cache = arithmetic.cache_of(Held(window, (100, 300), rest), 10, 20, tensor_split=False)
    assert cache == Cache(bytes_per_token=20 + (rest[1] - rest[0]) // 10)
    model = sizes.by_mlx("/m", {"model_type": "x"}, Facts(total_bytes=1, kv=(cache,)), (1,))
    assert model.kv == (KVLayer(bytes_per_token=cache.bytes_per_token),)


def test_the_dry_run_imports_no_models_of_pydantic() -> None:
    """They take a third of the time of its imports, and each Mac runs it for each of its models."""
    code = "import sys; from thunderfleet_runner.sizing import bounded, dryrun; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_reason_is_one_line_within_the_limit() -> None:
    assert arithmetic.text(" no\n  such\tsplit ") == "no such split"
    assert arithmetic.text("x" * 501) == "x" * 500
    assert arithmetic.text(ValueError()) == "ValueError"


def test_a_configuration_that_says_zero_says_nothing() -> None:
    names = ("n_positions", "seq_length")
    assert arithmetic.number({"n_positions": 0, "seq_length": 7}, names) == 7
    assert arithmetic.number({"n_positions": -1, "text_config": {"n_positions": 2**63}}, names) is None
    assert arithmetic.number({"n_positions": True, "llm_config": {"seq_length": 2**63 - 1}}, names) == 2**63 - 1


def test_growth_and_windows() -> None:
    assert arithmetic.growth(1000, 2000, 100, 200) == (0, 10)
    assert arithmetic.growth(1500, 1500, 100, 200) == (1500, 0)
    plain = Held(None, (0, 0), (100 + 7, 200 + 7))
    assert arithmetic.cache_of(plain, 100, 200, True) == Cache(fixed_bytes=7, bytes_per_token=1, tensor_split=True)
    window = Held(50, (100, 200), (0, 0))
    assert arithmetic.cache_of(window, 100, 200, False) == Cache(bytes_per_token=1, window_tokens=50)
    both = Held(50, (100, 200), (200, 400))
    assert arithmetic.cache_of(both, 100, 200, False) == Cache(fixed_bytes=50, bytes_per_token=2)


def test_the_peak_frees_what_is_not_used_again() -> None:
    nodes = [
        Node("Matmul", ("w", "x"), (("a", 100),)),
        Node("Reshape", ("a",), (("b", 100),)),
        Node("Exp", ("b",), (("c", 100),)),
        Node("Exp", ("c",), (("d", 100),)),
        Node("Exp", ("d",), (("kept", 1000),)),
    ]
    assert arithmetic.peak_bytes(nodes, frozenset({"kept"})) == 200
    assert arithmetic.peak_bytes(nodes, frozenset()) == 1100


def test_short_steps_are_carried_on_to_a_full_one() -> None:
    def used(tokens: int, seen: int) -> int:
        return 1000 + 20 * tokens + 3 * seen + 2 * tokens * seen

    samples = [Sample(tokens, seen, used(tokens, seen)) for tokens in (64, 128) for seen in (tokens, tokens + 256)]
    found = arithmetic.workspace_of_samples(samples, 2048, ())
    assert found == Workspace(used(2048, 2048), 3 + 2 * 2048)


def test_a_growing_cache_is_copied_and_a_window_keeps_a_step() -> None:
    samples = [Sample(tokens, seen, 1000) for tokens in (64, 128) for seen in (tokens, tokens + 256)]
    kv = (Cache(bytes_per_token=10), Cache(bytes_per_token=30), Cache(bytes_per_token=7, window_tokens=50))
    found = arithmetic.workspace_of_samples(samples, 100, kv)
    assert found == Workspace(1000 + 7 * 99 + 30 * 100, 30)


def test_the_workspace_by_a_configuration_is_that_of_the_widest_layer() -> None:
    assert arithmetic.workspace_by_configuration({"hidden_size": 10}, 3) == Workspace(3 * 4 * (6 * 10 + 3 * 40), 0)
    config = {"hidden_size": 10, "intermediate_size": 7}
    assert arithmetic.workspace_by_configuration(config, 3) == Workspace(3 * 4 * (6 * 10 + 3 * 7), 0)
    assert arithmetic.workspace_by_configuration({}, 3) is None


def test_caches_by_a_configuration_that_says_enough() -> None:
    config = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 62}
    assert arithmetic.caches_by_configuration(config) == (Cache(bytes_per_token=2 * 2 * 4 * 16),) * 3
    grouped = config | {"num_key_value_heads": 2, "head_dim": 32}
    assert arithmetic.caches_by_configuration(grouped) == (Cache(bytes_per_token=2 * 2 * 2 * 32),) * 3
    for name in config:
        assert arithmetic.caches_by_configuration({key: value for key, value in config.items() if key != name}) == ()
    assert len(arithmetic.caches_by_configuration(config | {"num_hidden_layers": 512})) == 512
    assert arithmetic.caches_by_configuration(config | {"num_hidden_layers": 513}) == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (False, None)),
        ({"quantization": {"bits": 4, "group_size": 64}}, (True, 4)),
        ({"quantization_config": {"quant_method": "mxfp4"}}, (True, 4)),
        ({"quantization_config": {"quant_method": "fp8"}}, (True, 8)),
        ({"text_config": {"quantization_config": {"bits": 3}}}, (True, 3)),
    ],
)
def test_quantization_as_configurations_say_it(config: dict[str, object], expected: tuple[bool, int | None]) -> None:
    assert arithmetic.quantization(config) == expected


@pytest.mark.parametrize(
    ("world_size", "ranks"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, (0, 1, 2, 3)), (9, (0, 1, 4, 8)), (16, (0, 1, 8, 15))]
)
def test_the_first_two_the_middle_and_the_last_rank_are_tried_first(world_size: int, ranks: tuple[int, ...]) -> None:
    assert arithmetic.asked_ranks(world_size) == ranks
