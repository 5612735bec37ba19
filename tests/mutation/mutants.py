"""Every mutant of a module, and the sample. Cosmic Ray makes the changes."""

import ast
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cosmic_ray.ast
import cosmic_ray.plugins
from cosmic_ray.mutating import mutate_code

from tests.mutation.modules import Module

# Of all replacements of an operator, those that are likely mistakes. Identity is left out where equality was meant: both
# hold for small numbers and enumerations.
_SWAPS = {
    "Comparison": "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Is_IsNot IsNot_Is",
    "Binary": "Add_Sub Sub_Add Mul_FloorDiv Div_Mul FloorDiv_Mul Mod_Mul BitOr_BitAnd BitAnd_BitOr",
    "Unary": "Delete_Not Delete_USub",
}
OPERATORS = (
    *(f"core/Replace{kind}Operator_{swap}" for kind, swaps in _SWAPS.items() for swap in swaps.split()),
    *("core/AddNot", "core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue", "core/ReplaceAndWithOr"),
    *("core/ReplaceOrWithAnd", "core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak", "core/ExceptionReplacer"),
    *("core/NumberReplacer", "core/ZeroIterationForLoop"),
)


@dataclass(frozen=True)
class Mutant:
    """One change of one place. ``code`` is the whole module after it."""

    module: Module
    operator: str
    line: int
    before: str
    after: str
    code: str

    @property
    def key(self) -> str:
        """Identifies the mutant even after other lines of its module have changed."""
        return f"{self.module.path}: {self.before} -> {self.after}"


@dataclass(frozen=True, order=True)
class _Place:
    """Where an operator can change a module: ``occurrence`` counts its places there."""

    path: Path
    operator: str
    occurrence: int
    line: int


def sample(root: Path, modules: Sequence[Module], number: int, seed: int, excluded: Collection[str]) -> list[Mutant]:
    """Draws mutants by the seed, at most one per line, without those whose keys are ``excluded``."""
    by_path = {module.path: module for module in modules}
    places = sorted(place for module in modules for place in _places(root, module))
    random.Random(seed).shuffle(places)
    seen, found = set[tuple[Path, int]](), list[Mutant]()
    for place in places:
        if len(found) == number:
            break
        if (place.path, place.line) in seen:
            continue
        mutant = _mutant(root, by_path[place.path], place)
        if mutant is not None and mutant.key not in excluded:
            seen.add((place.path, place.line))
            found.append(mutant)
    return found


def _places(root: Path, module: Module) -> Iterator[_Place]:
    """Every place outside of annotations, which do nothing at run time, and decorators."""
    source = (root / module.path).read_text()
    apart = _apart(source)
    nodes = list(cosmic_ray.ast.ast_nodes(cosmic_ray.ast.get_ast(source)))
    for name in OPERATORS:
        operator = cosmic_ray.plugins.get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            if not any(first <= start < last for first, last in apart):
                yield _Place(module.path, name, occurrence, start[0])


def _mutant(root: Path, module: Module, place: _Place) -> Mutant | None:
    """The mutant of a place; None when the operator changes nothing there."""
    source = (root / module.path).read_text()
    code = mutate_code(source, cosmic_ray.plugins.get_operator(place.operator)(), place.occurrence)
    if code is None or code == source:
        return None
    old, new = source.splitlines(), code.splitlines()
    line = next((number for number, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)) - 1)
    return Mutant(module, place.operator, line + 1, old[line].strip(), new[line].strip(), code)


def _apart(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations and decorators start and end, as (line, column)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None), *getattr(node, "decorator_list", ())]
        for part in parts:
            if isinstance(part, ast.expr):
                end = (part.end_lineno or part.lineno, part.end_col_offset or part.col_offset)
                found.append(((part.lineno, part.col_offset), end))
    return found
