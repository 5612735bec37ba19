"""The docstring of every package lists exactly its modules and packages: it is the map that a reader starts with."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = (
    "cli",
    "controlplane",
    "crds",
    "image",
    "kubelet",
    "lib",
    "localcluster",
    "node-agent",
    "operator",
    "router",
    "runner",
    "tests/bench",
    "tests/support",
    "view",
)
PACKAGES = sorted(
    path.parent for program in PROGRAMS for path in (ROOT / program).rglob("__init__.py") if ".venv" not in path.parts
)


def listed(source: str) -> list[str]:
    """The entries of the map: a name, at least two spaces, what it is."""
    doc = ast.get_docstring(ast.parse(source)) or ""
    return re.findall(r"^(\w+)/? {2,}\S", doc, re.MULTILINE)


def contained(package: Path) -> set[str]:
    """Its modules, and its folders: packages and data."""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    return modules | {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_lists_its_modules(package: Path) -> None:
    found = listed((package / "__init__.py").read_text(encoding="utf-8"))
    assert len(found) == len(set(found)), "a module is listed twice"
    how = f"the docstring of {package.relative_to(ROOT)}/__init__.py has a line for each module: name, two spaces, what it is"
    assert set(found) == contained(package), how


def test_the_check_sees_every_program_and_every_entry() -> None:
    assert {program for program in PROGRAMS for path in PACKAGES if path.is_relative_to(ROOT / program)} == set(PROGRAMS)
    assert listed('"""A package.\n\none  the first\ntwo/   the second, which\n       goes on\n\nAnd so on.\n"""') == [
        "one",
        "two",
    ]
