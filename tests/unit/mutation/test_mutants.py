"""The sample is drawn by its seed, mutants change one line each, and annotations are left alone."""

from pathlib import Path

import pytest

from tests.mutation import equivalent
from tests.mutation.modules import PURE, Module, pure, unit_tests
from tests.mutation.mutants import Mutant, sample

ROOT = Path(__file__).parents[3]
SOURCE = '''"""A module."""


def first(values: list[int] | None, limit: int = 3) -> int | None:
    for value in values or ():
        if value > limit and value != 7:
            return value + 1
    return None
'''


@pytest.fixture
def module(tmp_path: Path) -> Module:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/first.py").write_text(SOURCE)
    return Module("lib", Path("lib/first.py"))


def draw(root: Path, module: Module, number: int, seed: int, excluded: tuple[str, ...] = ()) -> list[Mutant]:
    return sample(root, [module], number, seed, excluded)


def test_a_seed_decides_the_sample_and_a_larger_one_begins_like_a_smaller(tmp_path: Path, module: Module) -> None:
    keys = [[mutant.key for mutant in draw(tmp_path, module, number, 3)] for number in (2, 2, 9)]
    assert keys[0] == keys[1] == keys[2][:2]
    assert {mutant.key for seed in range(20) for mutant in draw(tmp_path, module, 2, seed)} > set(keys[0])


def test_a_mutant_changes_one_line_of_code_and_no_annotation(tmp_path: Path, module: Module) -> None:
    found = [mutant for seed in range(40) for mutant in draw(tmp_path, module, 9, seed)]
    assert {mutant.line for mutant in found} == {4, 5, 6, 7}
    for mutant in found:
        changed = [(a, b) for a, b in zip(SOURCE.splitlines(), mutant.code.splitlines(), strict=True) if a != b]
        assert [(a.strip(), b.strip()) for a, b in changed] == [(mutant.before, mutant.after)]
        assert "values: list[int] | None, limit: int =" in mutant.code and "-> int | None" in mutant.code


def test_a_sample_has_one_mutant_per_line_and_none_that_is_excluded(tmp_path: Path, module: Module) -> None:
    found = draw(tmp_path, module, 9, 3)
    assert sorted(mutant.line for mutant in found) == [4, 5, 6, 7]
    assert found[0].key not in {mutant.key for mutant in draw(tmp_path, module, 9, 3, (found[0].key,))}


def test_every_pattern_of_pure_modules_matches_and_every_program_has_tests() -> None:
    for program in PURE:
        module = pure(ROOT, [program])[0]
        assert unit_tests(ROOT, module)


def test_a_list_of_equivalent_mutants_has_a_reason_for_each(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.txt"
    file.write_text("# head\na.py: x -> y\n  because\n")
    assert equivalent.read(file) == {"a.py: x -> y": "because"}
    for text in ("a.py: x -> y\n", "a.py: x -> y\nb.py: x -> y\n  because\n", "  because\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match="reason"):
            equivalent.read(file)
    equivalent.read()
