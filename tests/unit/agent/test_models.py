"""Models on disk are found, checked for completeness, and sized once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thunderfleet_agent.observe import models
from thunderfleet_agent.observe.kept_sizes import KeptSizes
from thunderfleet_agent.observe.models import Library, find, look, sized
from thunderfleet_crds.kinds.nodeprofile import Model
from thunderfleet_crds.vocabulary import SizedBy
from thunderfleet_lib.host.hostcmd import Host

MakeModel = Callable[..., Path]
SIZE = {
    "architecture": "qwen2",
    "quantized": False,
    "layers": 4,
    "contextLengthTokens": 32768,
    "prefillWorkspaceBytes": 1000,
    "sizes": [{"worldSize": 1, "tensorBytesPerRank": [32]}, {"worldSize": 3, "refusal": "4 heads"}],
    "pipeline": {"layerBytes": [4, 4], "sharedBytes": 24},
    "kv": [{"bytesPerToken": 512, "tensorSplit": True}],
    "sizedBy": "MLX",
    "path": "/somewhere/else",
}


def test_models_are_named_after_their_place(tmp_path: Path, make_model: MakeModel) -> None:
    make_model(tmp_path / "thunderfleet" / "tiny")
    make_model(tmp_path / "models--mlx-community--Qwen3-4B" / "snapshots" / "abc123")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    found, problems = find([tmp_path, tmp_path / "not-there"])
    assert [(folder.repository, folder.revision) for folder in found] == [
        ("mlx-community/Qwen3-4B", "abc123"),
        ("thunderfleet/tiny", None),
    ]
    assert problems == []


def test_an_unreadable_folder_is_reported(tmp_path: Path) -> None:
    unreadable = tmp_path / ("x" * 300)
    assert find([unreadable])[1] == [f"{unreadable}: File name too long"]


@pytest.mark.parametrize("index", [False, True])
def test_a_whole_model(index: bool, tmp_path: Path, make_model: MakeModel) -> None:
    contents = look(make_model(tmp_path / "m", index=index))
    assert contents.problem is None and contents.architecture == "qwen2"
    assert contents.bytes == sum(file.stat().st_size for file in (tmp_path / "m").iterdir())


@pytest.mark.parametrize("index", [False, True])
def test_a_file_that_was_not_downloaded_to_its_end(index: bool, tmp_path: Path, make_model: MakeModel) -> None:
    assert "the download is incomplete" in str(look(make_model(tmp_path / "m", index=index, cut=1)).problem)


def test_what_else_makes_a_model_incomplete(tmp_path: Path, make_model: MakeModel) -> None:
    missing = make_model(tmp_path / "a", index=True)
    (missing / "model-00002-of-00002.safetensors").unlink()
    assert look(missing).problem == "1 of 2 weight files are missing: model-00002-of-00002.safetensors"

    lacking = make_model(tmp_path / "b", index=True)
    (lacking / "model-00002-of-00002.safetensors").write_bytes((lacking / "model-00001-of-00002.safetensors").read_bytes())
    assert (
        look(lacking).problem
        == "model-00002-of-00002.safetensors does not contain 1 of the tensors that the index lists, such as b"
    )

    bare = make_model(tmp_path / "c")
    (bare / "model.safetensors").unlink()
    assert "no weights: the folder has no" in str(look(bare).problem)

    broken = make_model(tmp_path / "d")
    (broken / "config.json").write_text("{")
    assert look(broken).problem == "config.json is not valid JSON"

    dangling = make_model(tmp_path / "e", index=True)
    (dangling / "model-00001-of-00002.safetensors").unlink()
    (dangling / "model-00001-of-00002.safetensors").symlink_to("../../blobs/gone")
    assert "No such file" in str(look(dangling).problem)


def test_what_is_no_regular_file_or_has_too_many_values_is_a_problem(tmp_path: Path, make_model: MakeModel) -> None:
    for number, name in enumerate(("config.json", "model.safetensors")):
        pipe = make_model(tmp_path / str(number))
        (pipe / name).unlink()
        os.mkfifo(pipe / name)
        assert look(pipe).problem == f"{name} is not a regular file"
    for number, text in enumerate((b"[" * 100_000, b"[" + b"[]," * 3_000_000 + b"0]")):
        large = make_model(tmp_path / f"large-{number}")
        (large / "config.json").write_bytes(text)
        before = time.process_time()
        assert look(large).problem == "config.json is not valid JSON"
        assert time.process_time() - before < 1.0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=64), index=st.binary(max_size=64))
def test_any_bytes_as_weights_are_a_problem_and_no_error(data: bytes, index: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(data)
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    assert look(tmp_path).problem


def test_sizes_come_from_the_runner_and_the_rest_from_the_disk() -> None:
    model = Model(path="/models/a/b", bytes=7, complete=True, repository="a/b")
    found = sized(model, json.dumps(SIZE))
    assert (found.path, found.bytes, found.sized_by) == ("/models/a/b", 7, SizedBy.MLX)
    refused = found.size(3)
    assert refused is not None and refused.refusal == "4 heads"
    assert Model.load(found.dump()) == found


def test_what_mlx_lm_cannot_run_is_published_and_goes_with_the_next_version() -> None:
    model = Model(path="/models/a/b", complete=True)
    found = sized(model, json.dumps({**SIZE, "unsupported": "mlx-lm 1 does not support this model"}))
    assert (found.unsupported, found.complete) == ("mlx-lm 1 does not support this model", True)
    assert sized(model, json.dumps(SIZE)).unsupported is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sizedBy": "Guess"}', '{"sizedBy": "MLX", "layers": -1}', "[" * 9999])
def test_a_size_that_cannot_be_read_is_a_problem_of_the_model(text: str) -> None:
    found = sized(Model(path="/m", complete=True), text)
    assert found.sized_by is None and found.complete and "cannot compute memory sizes" in str(found.problem)


async def test_a_model_is_sized_once_until_its_folder_changes(tmp_path: Path, machine: Any, make_model: MakeModel) -> None:
    folder = make_model(tmp_path / "models" / "org" / "tiny")
    log = tmp_path / "sized"
    (tmp_path / "size.json").write_text(json.dumps(SIZE))
    machine.script("thunderfleet-runner", f'echo "$@" >> {log}; exec cat {tmp_path}/size.json')
    library = Library(Host(), [tmp_path / "models"])
    library.scan()
    (model,) = library.models
    assert model.complete and model.sized_by is None
    assert await library.size_next() and not await library.size_next()
    library.scan()
    assert not await library.size_next()
    (model,) = library.models
    assert model.sized_by is SizedBy.MLX and model.repository == "org/tiny"
    assert log.read_text() == f"size {folder} -o json\n"
    (folder / "tokenizer.json").write_text("{}")
    library.scan()
    assert await library.size_next()
    assert len(log.read_text().splitlines()) == 2


@pytest.mark.parametrize("by", [SizedBy.MLX, SizedBy.FILES])
async def test_the_next_process_does_not_compute_sizes_again(
    by: SizedBy, tmp_path: Path, machine: Any, make_model: MakeModel
) -> None:
    """Unless they came from the files alone, the folder has changed, or other programs are installed."""
    folder = make_model(tmp_path / "models" / "org" / "tiny")
    log = tmp_path / "sized"
    (tmp_path / "size.json").write_text(json.dumps({**SIZE, "sizedBy": by.value}))
    machine.script("thunderfleet-runner", f'echo "$@" >> {log}; exec cat {tmp_path}/size.json')

    async def runs_of_a_new_process(programs: str = "mlx=1") -> int:
        log.write_text("")
        library = Library(Host(), [tmp_path / "models"], kept=KeptSizes(tmp_path / "state", programs))
        library.scan()
        assert await library.size_next() and not await library.size_next()
        assert library.models[0].sized_by is by and library.models[0].repository == "org/tiny"
        return len(log.read_text().splitlines())

    assert await runs_of_a_new_process() == 1
    assert await runs_of_a_new_process() == (0 if by is SizedBy.MLX else 1)
    (folder / "tokenizer.json").write_text("{}")
    assert await runs_of_a_new_process() == 1
    assert await runs_of_a_new_process("mlx=2") == 1
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / "sizes.json").write_text("{")
    assert await runs_of_a_new_process("mlx=2") == 1


def test_only_sizes_of_present_models_are_kept(tmp_path: Path) -> None:
    kept = KeptSizes(tmp_path, "")
    kept.keep("/models/a", "1", "A", {"/models/a"})
    kept.keep("/models/b", "2", "B", {"/models/b"})
    again = KeptSizes(tmp_path, "")
    assert (again.of("/models/a", "1"), again.of("/models/b", "2"), again.of("/models/b", "3")) == (None, "B", None)


async def test_a_model_that_cannot_be_sized_is_published_with_why_and_tried_again(
    tmp_path: Path, machine: Any, make_model: MakeModel
) -> None:
    make_model(tmp_path / "models" / "org" / "odd")
    machine.script("thunderfleet-runner", "echo 'Model type odd not supported.' >&2; exit 1")
    now = 1000.0
    library = Library(Host(), [tmp_path / "models"], clock=lambda: now)
    library.scan()
    assert await library.size_next() and not await library.size_next()
    (model,) = library.models
    assert model.complete and model.sized_by is None
    assert "exited with code 1: Model type odd not supported." in str(model.problem)
    now += models.RETRY_SECONDS
    machine.says("thunderfleet-runner", json.dumps(SIZE))
    assert await library.size_next()
    assert library.models[0].problem is None


async def test_an_incomplete_model_is_not_sized(tmp_path: Path, machine: Any, make_model: MakeModel) -> None:
    make_model(tmp_path / "models" / "m", cut=1)
    library = Library(Host(), [tmp_path / "models"])
    library.scan()
    assert not await library.size_next()
    assert not library.models[0].complete


def test_the_hubs_cache_is_found_where_its_variables_say(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert models.hub_caches({}, home) == []
    default = home / ".cache" / "huggingface" / "hub"
    for folder in (default, tmp_path / "hf" / "hub", tmp_path / "cache"):
        folder.mkdir(parents=True)
    assert models.hub_caches({}, home) == [default]
    assert models.hub_caches({"HF_HOME": str(tmp_path / "hf")}, home) == [tmp_path / "hf" / "hub"]
    both = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_CACHE": str(tmp_path / "cache")}
    assert models.hub_caches(both, home) == [tmp_path / "cache"]


def test_a_started_download_is_incomplete(tmp_path: Path, make_model: Any) -> None:
    """The hub's cache: snapshots are links to blobs; a running download is a blob named .incomplete."""
    repository = tmp_path / "models--org--name"
    begun = repository / "snapshots" / "abc"
    begun.mkdir(parents=True)
    (begun / models.INDEX).symlink_to("../../blobs/index")
    library = models.Library(Host(), [tmp_path])
    library.scan()
    (found,) = library.models
    assert (found.repository, found.revision, found.complete) == ("org/name", "abc", False) and found.problem
    # Configuration and index are there; a weight file is a link to a blob that is still being written.
    whole = make_model(tmp_path / "whole", index=True)
    (begun / models.INDEX).unlink()
    for file in whole.iterdir():
        file.rename(begun / file.name)
    weight = begun / "model-00002-of-00002.safetensors"
    kept = weight.read_bytes()
    weight.unlink()
    weight.symlink_to("../../blobs/second")
    library.scan()
    assert not library.models[0].complete
    (repository / "blobs").mkdir()
    (repository / "blobs" / "second").write_bytes(kept)
    library.scan()
    assert library.models[0].complete


def test_without_an_index_the_names_say_how_many_files_there_are(tmp_path: Path, make_model: Any) -> None:
    folder = make_model(tmp_path / "model", index=True)
    (folder / models.INDEX).unlink()
    assert models.look(folder).problem is None
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert "1 of 2 weight files are missing" in (models.look(folder).problem or "")
