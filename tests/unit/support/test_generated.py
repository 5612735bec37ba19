"""``make fuzz`` sees every test with generated input, with more examples than a run of the tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import generated

UNIT = Path(__file__).parents[1]
TREES = {file.name: ast.parse(text) for file in sorted(UNIT.rglob("test_*.py")) if "@given(" in (text := file.read_text())}


def _given(function: ast.AST) -> bool:
    decorators = function.decorator_list if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return any(isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "given" for one in decorators)


def _marked(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one) == "pytest.mark.hypothesis" for one in function.decorator_list)


def _with_function_inside(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Tests that have such a function inside, or get one from a fixture of their module."""
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    outer = {one.name for one in functions if not _given(one) and any(_given(inner) for inner in ast.walk(one))}
    for one in functions:
        uses = {argument.arg for argument in one.args.args} | {one.name}
        if one.name.startswith("test_") and uses & outer:
            yield one


def test_a_test_with_a_generated_function_inside_has_the_mark() -> None:
    found = {f"{name}::{one.name}": one for name, tree in TREES.items() for one in _with_function_inside(tree)}
    assert len(found) > 5
    assert [name for name, one in found.items() if not _marked(one)] == []


def test_no_number_of_examples_is_fixed() -> None:
    """``examples(N)`` is larger in `make fuzz`."""
    numbers = [
        f"{name}:{one.value.lineno}"
        for name, tree in TREES.items()
        for one in ast.walk(tree)
        if isinstance(one, ast.keyword) and one.arg == "max_examples" and isinstance(one.value, ast.Constant)
    ]
    assert numbers == []


@pytest.mark.parametrize(("usual", "fuzzed"), [(6, 300), (100, 5000), (400, 5000), (9000, 9000)])
def test_a_test_with_few_examples_has_its_share_of_more(usual: int, fuzzed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "EXAMPLES", 5000)
    monkeypatch.setattr(generated, "FUZZ", False)
    assert generated.examples(usual) == usual
    monkeypatch.setattr(generated, "FUZZ", True)
    assert generated.examples(usual) == fuzzed
