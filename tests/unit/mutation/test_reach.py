"""Which tests a mutant is tried with."""

import os
from pathlib import Path

import pytest

from tests.mutation import reach

SOURCE = """\
LIMIT = 3


def small(value):
    if (
        value
        < LIMIT
    ):
        return True
    return False
"""
TESTS = """\
from first import small


def test_small():
    assert small(1)


class TestLarge:
    async def test_large(self):
        assert not small(9)
"""


@pytest.fixture
def found(tmp_path: Path) -> reach.Reach:
    (tmp_path / "first.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_first.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nmarkers = slow\n  soak\naddopts = --import-mode=importlib\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return reach.run(tmp_path, [Path("first.py")], ["tests/test_first.py"], tmp_path, environment)


def test_a_line_is_tried_with_the_tests_that_run_its_statement(found: reach.Reach) -> None:
    small, large = "tests/test_first.py::test_small", "tests/test_first.py::TestLarge::test_large"
    assert found.tests(Path("first.py"), 7) == ([large, small], False)
    assert found.tests(Path("first.py"), 9) == ([small], False)
    assert found.tests(Path("first.py"), 10) == ([large], False)


def test_a_line_that_runs_on_import_is_tried_with_every_test(found: reach.Reach) -> None:
    assert found.tests(Path("first.py"), 1) == ([], True)
