"""pytest uses what was rewritten before its workers start."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite.rewriting import files_of, rewrite_once
from tests.support.waiting import WAIT_SECONDS

TESTS = ("conftest.py", "test_one.py", "below/test_two.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tests, and a module that pytest does not rewrite."""
    for name in (*TESTS, "below/values.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def test() -> None:\n    assert 1 + 1 == 2\n" if "test_" in name else "")
    return tmp_path


def _rewritten(folder: Path) -> set[str]:
    """The files that a run of pytest rewrites; it reads conftest.py before it begins its log."""
    log = folder / "pytest.log"
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), "--import-mode=importlib"]
    command += ["--collect-only", "--continue-on-collection-errors", f"--debug={log}", str(folder)]
    environment = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, capture_output=True, cwd=folder, env=environment, timeout=WAIT_SECONDS, check=False)
    lines = log.read_text(encoding="utf-8").splitlines()
    assert any("find_module called for: " in line and "test_one" in line for line in lines)
    return {name for name in TESTS for line in lines if " rewriting " in line and f"{folder / name}'" in line}


def test_workers_rewrite_only_what_was_changed_since(folder: Path, pytestconfig: pytest.Config) -> None:
    files = [folder / name for name in TESTS]
    broken = folder / "test_broken.py"
    broken.write_text("def test(:\n")
    assert rewrite_once(pytestconfig, [*files, broken]) == [*files, broken]
    assert _rewritten(folder) == set()
    assert rewrite_once(pytestconfig, files) == []
    files[1].write_text("def test() -> None:\n    assert 2 + 2 == 4\n")
    assert _rewritten(folder) == {TESTS[1]}


def test_without_it_a_worker_rewrites_all(folder: Path) -> None:
    assert _rewritten(folder) == {*TESTS} - {"conftest.py"}


def test_the_files_are_the_tests_that_are_named(pytestconfig: pytest.Config) -> None:
    found = files_of(pytestconfig)
    assert Path(__file__) in found
    assert all(file.name == "conftest.py" or file.name.startswith("test_") for file in found)
