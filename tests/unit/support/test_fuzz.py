"""``python -m tests.fuzz``: it runs every test with generated input once for a seed, and continues where it stopped."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import __main__ as program
from tests.fuzz.__main__ import Result
from tests.support.processes import exists
from tests.support.waiting import until

TESTS = [f"tests/unit/lib/test_a.py::test_{number}" for number in range(5)]
Main = Callable[..., int]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """What runs; ``test_3`` fails, unless the seed is 7."""
    found: list[Result] = []

    def run(test: str, code: str, seed: int, examples: int) -> Result:
        failed = test.endswith("_3") and seed != 7
        found.append(Result(test, code, seed, examples, 1.5, not failed, "Falsifying example" if failed else ""))
        return found[-1]

    monkeypatch.setattr(program, "generated", lambda: list(TESTS))
    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(program, "sources", lambda: "1")
    return found


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["fuzz", "--results", str(tmp_path / "results"), *words])
        return program.main()

    return call


def test_every_test_runs_once_and_failures_are_shown(
    main: Main, ran: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("--examples", "9") == 1
    assert sorted(one.test for one in ran) == TESTS
    assert {one.examples for one in ran} == {9}
    said = capsys.readouterr().out
    assert "test_3 failed:\nFalsifying example" in said and "5 of 5 tests ran, 1 failed" in said
    kept = [Result(**json.loads(line)) for line in (tmp_path / "results").read_text().splitlines()]
    assert sorted(kept, key=lambda one: one.test) == sorted(ran, key=lambda one: one.test)


def test_a_later_run_continues_and_tries_failures_again(main: Main, ran: list[Result]) -> None:
    assert main("--minutes", "0") == 0
    assert not ran
    main()
    assert main() == 1
    assert [one.test for one in ran[5:]] == [TESTS[3]]
    assert main("--seed", "7") == 0
    assert len(ran) == 11, "another seed has other inputs"
    assert main("--seed", "7") == 0
    assert len(ran) == 11


def test_results_of_other_sources_do_not_count(main: Main, ran: list[Result], monkeypatch: pytest.MonkeyPatch) -> None:
    main()
    monkeypatch.setattr(program, "sources", lambda: "2")
    main()
    assert len(ran) == 10


def test_an_error_of_this_program_is_no_result(main: Main, ran: list[Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> Result:
        raise OSError("no process")

    monkeypatch.setattr(program, "run", run)
    with pytest.raises(OSError, match="no process"):
        main()
    assert not ran


def test_a_run_that_was_killed_while_it_wrote_continues(main: Main, ran: list[Result], tmp_path: Path) -> None:
    main("--seed", "7")
    file = tmp_path / "results"
    file.write_text(file.read_text()[:-20])
    assert main("--seed", "7") == 0
    assert len(ran) == 6


def test_the_seed_decides_the_order(main: Main, ran: list[Result]) -> None:
    orders = []
    for seed in ("7", "8", "9"):
        main("--seed", seed, "--jobs", "1")
        orders.append([one.test for one in ran[-5:]])
    assert orders[0] != orders[1] or orders[1] != orders[2]


@pytest.mark.parametrize("text", ["{", '{"test": 1}', "[]"])
def test_another_file_is_not_written_to(main: Main, ran: list[Result], tmp_path: Path, text: str) -> None:
    file = tmp_path / "results"
    file.write_text(text)
    with pytest.raises(SystemExit, match="has other content"):
        main()
    assert file.read_text() == text and not ran


def test_a_property_that_does_not_hold_fails_with_its_example(tmp_path: Path) -> None:
    file = tmp_path / "test_property.py"
    file.write_text(
        "from hypothesis import given, strategies\n@given(strategies.integers())\ndef test_small(x): assert x < 77\n"
    )
    result = program.run(str(file), "", 3, 50)
    assert not result.passed and "x=77" in result.output


def test_a_test_without_end_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_endless.py"
    left = tmp_path / "left"
    file.write_text(
        "import subprocess\n"
        "def test_endless():\n    process = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(left)!r}, 'w').write(str(process.pid))\n    process.wait()\n"
    )
    monkeypatch.setattr(program, "TEST_SECONDS", 10.0)
    result = program.run(str(file), "", 3, 50)
    assert not result.passed and "did not end" in result.output
    until(lambda: not exists(int(left.read_text())), "what it has started has ended")


def test_the_output_of_a_failure_may_have_any_bytes(tmp_path: Path) -> None:
    file = tmp_path / "test_bytes.py"
    file.write_text("import os\ndef test_bytes():\n    os.write(1, bytes(range(256)))\n    assert False, '\\udcff'\n")
    assert "test_bytes" in program.run(str(file), "", 3, 50).output


def test_a_changed_file_has_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "ROOT", tmp_path)
    (tmp_path / "lib" / "in").mkdir(parents=True)
    found = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "lib" / "in" / "a.py").write_text(text)
        found.add(program.sources())
    assert len(found) == 2
