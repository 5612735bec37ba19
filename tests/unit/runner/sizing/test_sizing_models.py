"""Sizes come from mlx-lm for models that it knows, otherwise from the files."""

import json
from pathlib import Path

import pytest
from thunderfleet_crds.kinds.nodeprofile import Model
from thunderfleet_crds.vocabulary import SizedBy
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.host import weightfiles
from thunderfleet_runner.rank import capabilities
from thunderfleet_runner.sizing import command


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    tinymodel.make(tmp_path)
    return tmp_path


def _weights(folder: Path) -> int:
    return sum(tensor.nbytes for tensor in weightfiles.read(folder))


def test_tensor_pipeline_and_caches(tiny: Path) -> None:
    found = command.size(tiny, range(1, 5))
    total = _weights(tiny)
    assert (found.architecture, found.layers, found.sized_by, found.quantized) == ("qwen2", 4, SizedBy.MLX, False)
    whole, half, three, four = found.sizes
    assert whole.tensor_bytes_per_rank == (total,)
    # Halved: all but embeddings, head and norms, which every rank holds.
    shared = 4 * (2 * tinymodel.VOCABULARY * tinymodel.HIDDEN + tinymodel.HIDDEN * (2 * tinymodel.LAYERS + 1))
    assert half.tensor_bytes_per_rank == ((total - shared) // 2 + shared,) * 2
    assert three.refusal and "Cannot shard" in three.refusal
    assert four.refusal and not four.tensor_bytes_per_rank, "two key-value heads cannot be dealt to four ranks"
    pipeline = found.pipeline
    assert pipeline is not None and pipeline.refusal is None
    assert sum(pipeline.layer_bytes) + pipeline.shared_bytes == total
    assert len(pipeline.layer_bytes) == tinymodel.LAYERS
    per_token = 2 * tinymodel.KV_HEADS * (tinymodel.HIDDEN // tinymodel.HEADS) * 4
    assert [(kv.fixed_bytes, kv.bytes_per_token, kv.window_tokens, kv.tensor_split) for kv in found.kv] == [
        (0, per_token, None, True)
    ] * tinymodel.LAYERS
    assert found.prefill_workspace_bytes and found.context_length_tokens == tinymodel.CONTEXT


def test_what_is_printed_is_the_kinds_shape(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(tiny, range(1, 3)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert Model.model_validate(printed) == command.size(tiny, range(1, 3))
    assert {"architecture", "layers", "sizes", "pipeline", "kv", "sizedBy"} <= set(printed)


def test_an_unknown_architecture_is_sized_by_its_files(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text()) | {"model_type": "from-the-future"}
    (tiny / "config.json").write_text(json.dumps(config))
    found = command.size(tiny, range(1, 17))
    total = _weights(tiny)
    assert (found.sized_by, found.layers, found.architecture) == (SizedBy.FILES, 4, "from-the-future")
    assert [size.world_size for size in found.sizes] == [1]
    assert found.sizes[0].tensor_bytes_per_rank == (total,)
    assert found.pipeline is not None and found.pipeline.refusal and "from-the-future" in found.pipeline.refusal
    assert sum(found.pipeline.layer_bytes) + found.pipeline.shared_bytes == total


@pytest.mark.parametrize("damage", ["cut", "config", "nothing"])
def test_a_damaged_model_is_a_sentence_and_exit_code_2(tiny: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    match damage:
        case "cut":
            (tiny / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:-1])
        case "config":
            (tiny / "config.json").write_text("{")
        case _:
            (tiny / "config.json").unlink()
    assert command.main(tiny, (1,)) == 2
    said = capsys.readouterr()
    assert said.out == "" and str(tiny) in said.err


def test_capabilities_are_what_mlx_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert capabilities.main() == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"mlxVersion", "mlxLmVersion", "backends", "device"}
    assert "ring" in printed["backends"] and printed["device"] in ("cpu", "gpu")


def test_a_model_that_mlx_lm_is_known_to_fail_with_says_so(tiny: Path) -> None:
    assert command.size(tiny, range(1, 2)).unsupported is None
    config = {"model_type": "glm_moe_dsa", "indexer_types": ["shared"]}
    (tiny / "config.json").write_text(json.dumps(json.loads((tiny / "config.json").read_text()) | config))
    found = command.size(tiny, range(1, 2))
    assert "share the indexers of others" in str(found.unsupported) and found.complete
