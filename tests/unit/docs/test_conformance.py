"""The table of node conformance: the names are those of Kubernetes, and the tests that it names exist."""

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from thunderfleet_controlplane.assets import KUBERNETES

from tests.support.otherprojects.nodeconformance import names

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "conformance.md").read_text()
FOLDERS = ("node", "network", "storage")
RESULTS = ("same", "part", "not run", "not supported", "does not apply")


def _table(head: str) -> list[list[str]]:
    lines = PAGE.split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def rows() -> list[list[str]]:
    """The tests by name."""
    return _table("| test of Kubernetes |")


def groups() -> list[list[str]]:
    """The tests that need the machine of the kubelet, by group: name, number, result and basis."""
    return _table("| group |")


def test_each_row_has_a_known_result_and_what_it_is_based_on() -> None:
    for name, result, basis in (*rows(), *([name, *rest] for name, _, *rest in groups())):
        assert result in RESULTS, name
        if result in ("same", "part"):
            assert re.search(r"`test_\w+`", basis), name
        if result in ("not supported", "does not apply"):
            assert len(basis) > 10, name


def test_the_tests_that_are_named_exist() -> None:
    sources = [*(ROOT / "tests/unit/kubelet").rglob("*.py"), *(ROOT / "tests/e2e").rglob("*.py")]
    known = set(re.findall(r"def (test_\w+)\(", "\n".join(file.read_text() for file in sources)))
    named = {name for *_, basis in (*rows(), *groups()) for name in re.findall(r"`(test_\w+)`", basis)}
    assert len(named) > 30 and named <= known


def test_the_counts_are_those_of_the_rows() -> None:
    counted = Counter(result for _, result, _ in rows())
    said = {kind: int(number) for kind, number in re.findall(r"^\| ([a-z ]+) \| [^|]+ \| (\d+) \|$", PAGE, re.MULTILINE)}
    assert said == counted


def test_the_names_are_those_of_the_version_that_is_built() -> None:
    assert f"Kubernetes {KUBERNETES})" in PAGE
    cache = (
        os.environ.get("GOMODCACHE")
        or subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    )
    folder = Path(cache) / f"k8s.io/kubernetes@{KUBERNETES}" / "test"
    if not folder.is_dir():
        pytest.skip("the sources of Kubernetes are not in the cache of Go")
    listed = [name for part in FOLDERS for name in names(folder / "e2e/common" / part)]
    assert [name.replace("\\*", "*") for name, _, _ in rows()] == listed
    of_node = Counter(group for test in names(folder / "e2e_node") for group, *_ in groups() if test.startswith(group))
    assert of_node == {group: int(number) for group, number, *_ in groups()}
    assert of_node.total() == len(names(folder / "e2e_node"))
