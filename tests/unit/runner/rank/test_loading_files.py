"""Loading: missing files are named, a rank holds its planned layers, and progress is complete."""

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.vocabulary import Split
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.host import priority, weightfiles
from thunderfleet_runner.host.weightfiles import IncompleteModel
from thunderfleet_runner.rank import loading
from thunderfleet_runner.rank.answers.stops import StopFinder
from thunderfleet_runner.sizing.arithmetic import StandIn


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    tinymodel.make(tmp_path)
    return tmp_path


def _rewrite(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def test_progress_adds_up_to_the_weights(tiny: Path) -> None:
    told: list[tuple[int, int, int]] = []
    loaded = loading.load(tiny, report=lambda *now: told.append(now))
    weights = sum(tensor.nbytes for tensor in weightfiles.read(tiny))
    assert loaded.nbytes == weights
    assert told[0] == (0, weights, 0)
    assert told[-1] == (weights, weights, tinymodel.LAYERS)
    assert [entry[0] for entry in told] == sorted({entry[0] for entry in told})


def test_a_rank_that_waits_for_others_lets_those_that_load_come_first(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(priority, "loaded", lambda: steps.append("has loaded"))
    monkeypatch.setattr(loading, "barrier", lambda group: steps.append("waits"))
    loading.load(tiny, group=object(), report=lambda *now: steps.append("loads"))
    assert steps[0] == "loads" and steps[-2:] == ["has loaded", "waits"]


def test_a_truncated_file_is_an_error_by_name(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(IncompleteModel, match=r"model\.safetensors is truncated: tensor lm_head\.weight"):
        loading.load(tiny, report=lambda *_: None)


def test_a_tensor_that_the_model_needs_is_an_error_by_name(tiny: Path) -> None:
    def without(header: dict[str, object]) -> None:
        del header["model.layers.1.mlp.up_proj.weight"]

    _rewrite(tiny, without)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        loading.load(tiny, report=lambda *_: None)


def test_a_tensor_that_the_index_names_is_an_error_by_name(tiny: Path) -> None:
    (tiny / weightfiles.INDEX).write_text(json.dumps({"weight_map": {"model.more": "model-00002.safetensors"}}))
    with pytest.raises(IncompleteModel, match=r"model\.more \(expected in model-00002\.safetensors\)"):
        loading.load(tiny, report=lambda *_: None)


def test_no_folder_no_files(tmp_path: Path) -> None:
    with pytest.raises(IncompleteModel, match="not a folder"):
        loading.load(tmp_path / "none", report=lambda *_: None)
    with pytest.raises(IncompleteModel, match="has no model"):
        loading.load(tmp_path, report=lambda *_: None)


@given(raw=st.binary(max_size=64))
def test_rubbish_is_no_model(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("rubbish")
    (folder / "model.safetensors").write_bytes(raw)
    try:
        assert all(tensor.nbytes >= 0 for tensor in weightfiles.read(folder))
    except IncompleteModel as error:
        assert "model.safetensors" in str(error)


def test_the_plans_split_is_mlx_lms() -> None:
    assert loading.pipeline_split([(3, 4), (0, 3)]) == [1, 3]
    for wrong in ([(0, 2), (2, 4)], [(3, 4), (0, 2)], [(2, 2), (0, 2)], [(1, 4)]):
        with pytest.raises(loading.CannotSplit, match="must be contiguous"):
            loading.pipeline_split(wrong)


def test_an_uneven_pipeline_holds_what_the_plan_says(tiny: Path) -> None:
    from mlx.utils import tree_flatten
    from thunderfleet_runner.rank import mlxlm

    ranges = [(3, 4), (0, 3)]
    for rank, (first, last) in enumerate(ranges):
        model, _ = mlxlm.load_lazily(tiny)
        loading.split_model(model, Split.PIPELINE, StandIn(rank, 2), ranges)
        names = {name.split(".")[2] for name, _ in tree_flatten(model.parameters()) if ".layers." in name}
        assert names == {str(layer) for layer in range(first, last)}


def test_a_split_that_does_not_divide_says_so(tiny: Path) -> None:
    from thunderfleet_runner.rank import mlxlm

    model, _ = mlxlm.load_lazily(tiny)
    with pytest.raises(loading.CannotSplit, match="qwen2 over 3 ranks"):
        loading.split_model(model, Split.TENSOR, StandIn(0, 3))


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), data=st.data())
def test_stop_strings_are_found_however_the_text_comes(text: str, stops: list[str], data: st.DataObject) -> None:
    finder = StopFinder(stops)
    shown, rest, stopped = "", text, False
    while rest and not stopped:
        size = data.draw(st.integers(1, len(rest)))
        piece, stopped = finder.feed(rest[:size])
        shown, rest = shown + piece, rest[size:]
    if not stopped:
        shown += finder.flush()
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert stopped == any(stop in text for stop in stops)
    if not stopped:
        assert shown == text


_HEADERS = st.dictionaries(
    st.sampled_from(["a", "__metadata__", "layers.0.w", "\ud800", "b" * 500]) | st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["F32", "BF16", "odd", "9" * 400]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets"]), inner | st.just([0, 16]) | st.just([4]), max_size=3
        ),
        max_leaves=8,
    ),
    max_size=4,
)  # fmt: skip


def _file(header: bytes, length: int | None = None, data: bytes = bytes(16)) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


@given(header=_HEADERS.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40), lie=st.integers(-9, 9))
def test_any_header_is_read_or_an_error_that_can_be_sent(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, lie: int
) -> None:
    folder = tmp_path_factory.mktemp("headers")
    (folder / "model.safetensors").write_bytes(_file(header, max(len(header) + lie, 0)))
    try:
        tensors = weightfiles.read(folder)
    except IncompleteModel as error:
        assert len(str(error)) < 2000 and str(error).encode()
    else:
        assert all(0 <= tensor.nbytes <= 16 for tensor in tensors)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" + b"[]," * 3_000_000 + b"0]",
        json.dumps({"w": {"dtype": "F32", "shape": [(1 << 62)] * 100_000, "data_offsets": [0, 16]}}).encode(),
        json.dumps({"w": {"dtype": "F32", "shape": [1e308], "data_offsets": [0, 16]}}).encode(),
        b'{"w": {"dtype": "F32", "shape": [Infinity], "data_offsets": [0, 16]}}',
        json.dumps({"w": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}).encode(),
        json.dumps({"w" * 1_000_000: {"dtype": "F32", "shape": [4], "data_offsets": [0, 99]}}).encode(),
    ],
    ids=["deep", "deep objects", "many", "dimensions", "float", "infinity", "negative", "long name"],
)
def test_a_header_made_to_be_slow_is_an_error_in_a_moment(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(_file(header))
    before = time.process_time()
    with pytest.raises(IncompleteModel) as caught:
        weightfiles.read(tmp_path)
    assert time.process_time() - before < 1.0
    assert len(str(caught.value)) < 2000


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(IncompleteModel, match="not a regular file"):
        weightfiles.read(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(IncompleteModel, match="not a regular file"):
        weightfiles.read(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").write_bytes(_file(b"{}"))
    os.mkfifo(tmp_path / weightfiles.INDEX)
    with pytest.raises(IncompleteModel, match="not a regular file"):
        weightfiles.read(tmp_path)
