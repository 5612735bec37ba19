"""Hypothesis uses the constants that were found before pytest's workers start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite.constants import modules_of
from tests.support.waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[3]
FOUND = """
import json, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.support.suite.constants import find_once
print(json.dumps([str(file) for file in find_once(Path.cwd(), map(Path, {files!r}))]))
"""
USED = """
import json
from hypothesis.internal import constants_ast
import one
read, real = [], constants_ast._constants_from_source
def reads(source, *, limit):
    read.append(source.decode())
    return real(source, limit=limit)
constants_ast._constants_from_source = reads
found = constants_ast.constants_from_module(one)
print(json.dumps([list(found.integers), [text for text in read if "a number" in text]]))
"""


def said(folder: Path, program: str) -> object:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, cwd=folder, text=True, timeout=WAIT_SECONDS, check=True)
    return json.loads(done.stdout)


def test_hypothesis_parses_only_what_was_changed_since(tmp_path: Path) -> None:
    one, two = files = [tmp_path / "one.py", tmp_path / "two.py"]
    one.write_text("# a number\nVALUE = 4711\n")
    two.write_text("VALUE = 12345\n")
    find = FOUND.format(root=str(ROOT), files=[str(file) for file in files])
    assert said(tmp_path, USED) == [[4711], [one.read_text()]], "without it"
    two.write_text("VALUE = 54321\n")
    assert said(tmp_path, find) == [str(two)]
    assert said(tmp_path, find) == []
    assert said(tmp_path, USED) == [[4711], []]
    one.write_text("# a number\nVALUE = 4712\n")
    assert said(tmp_path, find) == [str(one)]
    assert said(tmp_path, USED) == [[4712], []]


def test_the_files_are_those_of_our_packages(pytestconfig: pytest.Config) -> None:
    found = modules_of(pytestconfig, [Path(__file__)])
    assert len(found) > 500 and not [file for file in found if "tests" in file.relative_to(ROOT).parts]
    assert modules_of(pytestconfig, []) == []
