"""Which results of earlier runs count."""

from pathlib import Path

import pytest

from tests.mutation import __main__ as runs
from tests.mutation.modules import UNIT, Module
from tests.mutation.mutants import Mutant, sample

(TESTS,) = UNIT["lib"]


@pytest.fixture
def mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mutant]:
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    (tmp_path / TESTS).mkdir(parents=True)
    (tmp_path / TESTS / "test_first.py").write_text("")
    (tmp_path / "first.py").write_text("A = 1 < 2\nB = 3 < 4\n")
    return sample(tmp_path, [Module("lib", Path("first.py"))], 2, 1, ())


def test_a_survivor_is_tried_again_when_the_tests_change(tmp_path: Path, mutants: list[Mutant]) -> None:
    noticed, survivor = mutants
    first = runs.Results(tmp_path / "results")
    first.add(noticed, "reached")
    first.add(survivor, "")
    again = runs.Results(tmp_path / "results")
    assert [again.get(one) for one in mutants] == ["reached", ""]
    (tmp_path / TESTS / "test_second.py").write_text("# more")
    assert [again.get(one) for one in mutants] == ["reached", None]
    (tmp_path / "first.py").write_text("A = 1 < 3\nB = 3 < 4\n")
    assert [again.get(one) for one in sample(tmp_path, [mutants[0].module], 2, 1, ())] == [None, None]


def test_a_sample_with_a_mutant_that_has_no_result_fails(
    tmp_path: Path, mutants: list[Mutant], capsys: pytest.CaptureFixture[str]
) -> None:
    results = runs.Results(tmp_path / "results")
    results.add(mutants[0], "reached")
    assert runs._report(["lib"], mutants, results) == 1
    assert "1 without a result: run this again" in capsys.readouterr().out
    results.add(mutants[1], "all")
    assert runs._report(["lib"], mutants, results) == 0
    assert "100%\n" in capsys.readouterr().out
