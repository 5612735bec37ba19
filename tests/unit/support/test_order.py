"""The names of files in the order of tests: a file that has moved would lose its worker, its fleet and its tier."""

from pathlib import Path

from tests.support.suite.order import GROUPS, LONGEST, SLOW, file_of, group_of

TESTS = Path(__file__).parents[2]


def test_every_name_is_a_group_or_a_file() -> None:
    files = {file_of(f"tests/{path.relative_to(TESTS)}") for path in TESTS.rglob("test_*.py")}
    names = {name for group in GROUPS.values() for name in group} | {*LONGEST, *SLOW}
    assert names - GROUPS.keys() <= files


def test_the_group_of_a_test_is_found_by_the_path_of_its_file() -> None:
    assert group_of("tests/unit/runner/ranks/test_jaccl_group.py::test_a[x/y]") == "ranks"
    assert group_of("tests/e2e/groups/test_line.py::test_a") == "default fleet"
    assert group_of("tests/unit/lib/net/test_tls.py::test_a") == "lib/net/test_tls"
