"""The image of our programs: works for an unprivileged user, is built once, is removed when unused."""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_localcluster import image
from thunderfleet_localcluster.errors import LocalClusterError
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


TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
[ "$(basename "$0")" = otool ] && printf '%s:\n%s\n' "$2" /Library/Frameworks/Python.framework/Versions/3.99/Python
exit 0
"""


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python in the layout of python.org's framework, whose ``bin/python3.99`` is a stub; and Apple's tools as recorded."""
    root = tmp_path / "Python.framework/Versions/3.99"
    program = root / "Resources/Python.app/Contents/MacOS/Python"
    program.parent.mkdir(parents=True)
    shutil.copy2(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), program)
    (root / "Python").write_bytes(b"the library")
    (root / "bin").mkdir()
    stub = root / "bin/python3.99"
    stub.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    stub.chmod(0o755)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("otool", "install_name_tool", "codesign"):
        (tools / name).write_text(TOOL.format(log=tmp_path / "log"))
        (tools / name).chmod(0o755)
    real = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "Python" if name == "PYTHONFRAMEWORK" else real(name))
    monkeypatch.setattr(sys, "base_prefix", str(root))
    monkeypatch.setattr(sys, "_base_executable", str(stub), raising=False)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return root


def test_the_python_of_a_framework_uses_the_copy_not_the_framework(framework: Path, tmp_path: Path) -> None:
    made = tmp_path / "image"
    for folder in ("bin", "lib"):
        (made / folder).mkdir(parents=True)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    standard = sysconfig.get_path("stdlib")
    image._place_interpreter(made, name)
    (made / "lib" / name).symlink_to(standard)
    shutil.rmtree(framework)
    done = subprocess.run(
        [str(made / "bin" / name), "-ISc", "import sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (str(made), "")
    assert (made / "lib/Python").read_bytes() == b"the library"
    installed = "/Library/Frameworks/Python.framework/Versions/3.99/Python"
    program = made / "bin" / name
    assert (tmp_path / "log").read_text().splitlines() == [
        f"otool -D {made}/lib/Python",
        f"install_name_tool -change {installed} @executable_path/../lib/Python {program}",
        f"codesign --force --sign - {made}/lib/Python",
        f"codesign --force --sign - {program}",
    ]


def test_without_apple_s_tools_a_framework_cannot_be_copied(
    framework: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(LocalClusterError, match="xcode-select --install"):
        image._place_interpreter(tmp_path, "python3.99")


def test_a_copy_for_root_shares_no_file_with_its_source(tmp_path: Path) -> None:
    """The owner of the source could change what root runs."""
    source = tmp_path / "source"
    (source / "package").mkdir(parents=True)
    (source / "package" / "module.py").write_text("a = 1\n")
    (source / "package" / "module.py").chmod(0o644)
    for link in (True, False):
        image._gather(source, tmp_path / str(link), set(), link)
        placed = tmp_path / str(link) / "package" / "module.py"
        assert placed.read_text() == "a = 1\n"
        assert placed.samefile(source / "package" / "module.py") == link


def test_a_build_that_another_process_does_not_finish_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "BUILD_SECONDS", 0.0)
    monkeypatch.setattr(image, "LOCK_SECONDS", 0.001)
    with (tmp_path / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LocalClusterError, match=f"another process has used {tmp_path}/build.lock"):
            make_image(tmp_path)
