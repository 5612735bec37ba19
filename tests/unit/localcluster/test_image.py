"""The image of our programs: works for an unprivileged user, is built once, is removed when unused."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_localcluster import image
from thunderfleet_localcluster.image import environment, make_image


@pytest.fixture(scope="session")
def images() -> Iterator[Path]:
    # Every folder above must be open to the unprivileged user, and pytest's are not.
    with tempfile.TemporaryDirectory(prefix="thunderfleet-images-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_every_user_can_run_it_and_it_needs_no_other_files(images: Path) -> None:
    made = make_image(images)
    again = make_image(images)
    assert made == again
    code = "import sys, aiohttp, pydantic, thunderfleet_kubelet; print(sys.prefix); print(*sys.path, sep='\\n')"
    user = image.UNPRIVILEGED if os.geteuid() == 0 else None
    done = subprocess.run(
        [str(made.folder / "bin/python3"), "-c", code],
        env=environment(made.folder),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(made.folder)) for line in done.stdout.split() if line)


def test_scripts_name_their_own_python(images: Path) -> None:
    made = make_image(images)
    for name in image.SCRIPTS:
        first = (made.folder / "bin" / name).read_text().split("\n")[0]
        assert first == f"#!{made.folder}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        assert os.access(made.folder / "bin" / name, os.X_OK)


def test_sources_are_copies_and_tools_stay_out(images: Path) -> None:
    made = make_image(images)
    (site,) = made.folder.glob("lib/python3.*/site-packages")
    own = site / "thunderfleet_crds" / "__init__.py"
    assert own.stat().st_nlink == 1
    assert list((site / "thunderfleet_crds" / "__pycache__").glob("*.pyc"))
    names = {path.name for path in site.iterdir()}
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "pip"}
    assert not [name for name in names if name.endswith(".pth")]


# Prints the tokenizers of transformers that can be imported.
TOKENIZERS = """
import importlib, pathlib, transformers
for path in sorted((pathlib.Path(transformers.__file__).parent / "models").glob("*/tokenization_*.py")):
    try:
        importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
    except (ImportError, NameError):
        continue
    print(path.stem)
"""


def test_models_of_pytorch_stay_out_and_no_tokenizer_misses_them(images: Path) -> None:
    made = make_image(images)

    def tokenizers(python: str) -> list[str]:
        done = subprocess.run([python, "-c", TOKENIZERS], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    found = tokenizers(str(made.folder / "bin/python3"))
    assert found == tokenizers(sys.executable)
    assert len(found) > 50
    assert not list(made.folder.glob("lib/python3.*/site-packages/transformers/models/llama/modeling_*.py"))


def test_unused_images_go_and_used_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "UNUSED_SECONDS", -1)
    for name in ("new", "used", "old"):
        (tmp_path / name).mkdir()
    with (tmp_path / "used.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        image._prune(tmp_path, keep="new")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["new", "used"]
