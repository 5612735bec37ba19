"""Ranks of a pipeline that have the files of their own layers only, with mlx-lm and real files."""

import hashlib
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlx.utils import tree_flatten
from thunderfleet_crds.vocabulary import Split
from thunderfleet_crds.weights.parts import numbers
from thunderfleet_lib.modelstore.parts import PART_FILE, Part
from thunderfleet_runner.host import weightfiles, weightvalues
from thunderfleet_runner.host.weightfiles import IncompleteModel
from thunderfleet_runner.rank import loading, mlxlm
from thunderfleet_runner.rank import partial as partially
from thunderfleet_runner.sizing import command
from thunderfleet_runner.sizing.arithmetic import StandIn

from tests.support.models import shardedmodel

RANGES = [(2, 4), (0, 2)]
"""By rank: rank 0 has the last layers."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shardedmodel.make(tmp_path / "model")
    return tmp_path / "model"


def part(model: Path, rank: int, digest: str = "d" * 64) -> Path:
    """A folder with the files of one rank, without the others."""
    first, last = RANGES[rank]
    folder = model.parent / f"rank-{rank}"
    folder.mkdir()
    held = weightfiles.by_file(model)
    for path in model.iterdir():
        layers, shared = held.get(path.name, (frozenset(), True))
        if shared or layers & set(range(first, last)):
            (folder / path.name).symlink_to(path)
    (folder / PART_FILE).write_bytes(Part(digest, frozenset({0}), frozenset(range(first, last))).dump())
    return folder


def split(rank: int) -> Any:
    return partial(loading.split_model, split=Split.PIPELINE, group=StandIn(rank, 2), ranges=RANGES)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_the_same_weights_from_its_own_files_as_from_all(model: Path, rank: int) -> None:
    found, _ = partially.load(part(model, rank), range(*RANGES[rank]), split(rank))
    whole, _ = mlxlm.load_lazily(model)
    split(rank)(whole)
    expected = dict(tree_flatten(whole.parameters()))
    loaded = dict(tree_flatten(found.parameters()))
    assert loaded.keys() == expected.keys()
    assert all(loaded[name].tolist() == expected[name].tolist() for name in expected)


def test_a_file_with_layers_of_two_ranks_is_in_both_parts(model: Path) -> None:
    files = shardedmodel.names(4)
    assert [(part(model, rank) / files[shardedmodel.BOTH]).exists() for rank in (0, 1)] == [True, True]
    assert not (part_of(model, 0) / files[1]).exists() and not (part_of(model, 1) / files[3]).exists()


def part_of(model: Path, rank: int) -> Path:
    return model.parent / f"rank-{rank}"


def test_a_file_of_the_rank_that_is_missing_is_named_by_its_weights(model: Path) -> None:
    folder = part(model, 0)
    (folder / shardedmodel.names(4)[3]).unlink()
    with pytest.raises(IncompleteModel, match=r"layers 2 to 3 have no weights for model\.layers\.3\."):
        partially.load(folder, range(2, 4), split(0))


def test_a_part_is_never_loaded_as_the_whole_model(model: Path) -> None:
    with pytest.raises(ValueError, match="Missing"):
        loading.load(part(model, 0), report=lambda *_: None)


def test_the_layers_of_files_come_from_headers_whatever_the_index_says(model: Path) -> None:
    index = json.loads((model / shardedmodel.INDEX).read_text())
    files = shardedmodel.names(4)
    lies = {**index, "metadata": {"total_size": 1}, "weight_map": dict.fromkeys(index["weight_map"], files[0])}
    (model / shardedmodel.INDEX).write_text(json.dumps(lies))
    assert weightfiles.by_file(model) == {
        files[0]: (frozenset(), True),
        files[1]: (frozenset({0}), False),
        files[2]: (frozenset({1, 2}), False),
        files[3]: (frozenset({3}), False),
    }
    assert command.size_and_parts(model, [1, 2])[1] is None


def test_a_tensor_in_two_files_means_no_parts(model: Path) -> None:
    files = shardedmodel.names(4)
    entries, data = shardedmodel.header(model / files[1])
    name = next(name for name in entries if name != "__metadata__")
    twice = {name: (entries[name], data[slice(*entries[name]["data_offsets"])])}
    shardedmodel.write(model / "model-extra.safetensors", twice)
    with pytest.raises(IncompleteModel, match=f"{name} is in {files[1]} and in model-extra"):
        weightfiles.by_file(model)


def test_tied_embeddings_are_needed_by_all_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    shardedmodel.make(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert command.size_and_parts(folder, [1, 2])[1] is None
    held = weightfiles.by_file(folder)
    assert [name for name, (_, shared) in held.items() if shared] == shardedmodel.names(4)[:1]


def test_values_of_parts_are_those_of_the_manifest_until_a_byte_changes(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    folder.mkdir()
    data = b"weights"
    (tmp_path / blob(data)).write_bytes(data)
    (folder / "model-1.safetensors").symlink_to(tmp_path / blob(data))
    made = Part("d" * 64, frozenset({0}), frozenset({0}))
    (folder / PART_FILE).write_bytes(made.dump())
    assert weightvalues.digest(folder, threading.Event())[1] == "d" * 64
    (tmp_path / blob(data)).write_bytes(b"weighty")
    assert weightvalues.digest(folder, threading.Event())[1] != "d" * 64


def blob(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"manifest":"x","files":[],"layers":[]}', '{"manifest":"' + "d" * 64 + '","files":["a"],"layers":[]}'],
)
def test_a_folder_that_does_not_say_which_part_it_has_is_refused(model: Path, text: str) -> None:
    (model / PART_FILE).write_text(text)
    with pytest.raises(IncompleteModel, match="which part of a model"):
        weightfiles.read(model)


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "1,,2", "-1", "99999", "1-20000", "../x"])
def test_ranges_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        numbers(text)
