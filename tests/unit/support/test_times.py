"""The table of `make test`: targets, folders, files and tests, the longest first."""

from tests.support.suite.times import table


def test_the_table_sums_by_folder_and_file_and_sorts_by_time() -> None:
    tests = [
        ("tests/unit/a/test_x.py::one", 1.0, 0.5),
        ("tests/unit/a/test_y.py::two", 3.0, 2.5),
        ("tests/e2e/test_z.py::z", 9.0, 1.0),
    ]
    text = table([("lint", 4.0, 2.0), ("unit", 5.0, 6.0)], tests, [])
    parts = [part.splitlines() for part in text.split("\n\n")]
    assert [part[0].split("CPU  ")[1] for part in parts] == [
        "make",
        "folder (sum of its tests)",
        "longest files",
        "longest tests",
    ]
    assert parts[0][-1].split() == ["9.0", "8.0", "in", "all"]
    assert [line.split() for line in parts[1][1:]] == [["9.0", "1.0", "tests/e2e"], ["4.0", "3.0", "tests/unit/a"]]
    assert [line.split()[-1] for line in parts[2][1:]] == [
        "tests/e2e/test_z.py",
        "tests/unit/a/test_y.py",
        "tests/unit/a/test_x.py",
    ]
    assert parts[3][2].split() == ["3.0", "2.5", "tests/unit/a/test_y.py::two"]


def test_without_tests_there_are_the_targets_alone() -> None:
    assert table([("lint", 4.0, 2.0)], [], []).count("\n\n") == 0


def test_the_waits_that_were_nearest_to_their_limits_come_first() -> None:
    waits = [("tests/e2e/test_z.py::z", "Ready", 50.0, 90.0), ("tests/e2e/test_z.py::z", "gone", 9.0, 10.0)]
    head, *lines = table([("e2e", 60.0, 2.0)], [], waits).split("\n\n")[-1].splitlines()
    assert head.endswith("limit  waits that took more than half of their limit: 2")
    assert [line.split() for line in lines] == [
        ["9.0", "10", "tests/e2e/test_z.py::z:", "gone"],
        ["50.0", "90", "tests/e2e/test_z.py::z:", "Ready"],
    ]
