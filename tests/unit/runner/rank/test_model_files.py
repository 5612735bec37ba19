"""What a model folder cannot do: run code, reach a hub, bring pickles."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.host.rankprocess import rank_environment
from thunderfleet_runner.host.weightfiles import IncompleteModel
from thunderfleet_runner.rank import loading, mlxlm


class Trap:
    """A pickle that runs a command when it is read."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._marker),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    tinymodel.make(found)
    return found


def change(file: Path, **entries: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def test_code_in_a_model_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Model: pass\nclass ModelArgs: pass\n")
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Model", "evil.Model"]})
    mlxlm.load_tokenizer(folder, {})
    change(folder / "config.json", auto_map={"AutoConfig": "evil.ModelArgs", "AutoModelForCausalLM": "evil.Model"})
    loading.load(folder, report=lambda *_: None)
    change(folder / "config.json", model_file="evil.py")
    with pytest.raises(ValueError, match="trust_remote_code"):
        loading.load(folder, report=lambda *_: None)
    assert not marker.exists()


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.bin", "model.pt", "model.npz"):
        (folder / name).write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises((IncompleteModel, FileNotFoundError)):
        loading.load(folder, report=lambda *_: None)
    assert not marker.exists()
    pickle.loads((folder / "model.bin").read_bytes())
    assert marker.exists(), "the trap works"


@pytest.mark.parametrize("text", ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append.__globals__ }}"])
def test_a_template_reaches_no_internals(folder: Path, text: str) -> None:
    (folder / "chat_template.jinja").write_text(text)
    tokenizer = mlxlm.load_tokenizer(folder, {})
    with pytest.raises(SecurityError):
        tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False)


def test_hubs_are_off() -> None:
    """In ranks and in the intake, whatever the pod's environment says."""
    environment = rank_environment({**os.environ, "HF_HUB_OFFLINE": "0"}, 3)
    ask = "from huggingface_hub import constants; print(constants.HF_HUB_OFFLINE)"
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "True", done.stderr
