"""Which unit tests run a line of a pure module, so that a mutant is tried with these tests alone."""

import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import coverage

# The context of lines that run outside of a test: on import, in fixtures and in threads.
OUTSIDE = ""
SECONDS = 1800.0
"""Time limit of one run of all quick unit tests of a program."""


class Reach:
    """Tests by module and line. ``contexts``: for each path relative to the root, the tests that ran each line."""

    def __init__(self, root: Path, contexts: Mapping[Path, Mapping[int, Sequence[str]]]) -> None:
        self._root, self._contexts = root, contexts

    def tests(self, path: Path, line: int) -> tuple[list[str], bool]:
        """Node ids of the tests that run the line's statement, and whether it also runs outside of tests."""
        lines = self._contexts.get(path, {})
        first = statement_start((self._root / path).read_text(), line)
        found = {name for number in range(first, line + 1) for name in lines.get(number, ())}
        return sorted(found - {OUTSIDE}), OUTSIDE in found or not found


def statement_start(source: str, line: int) -> int:
    """First line of the innermost statement at ``line``: coverage counts a statement by it."""
    starts = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(starts, default=line)


def configuration(root: Path, paths: Sequence[Path], data: Path) -> str:
    """Settings of coverage: only these modules, with the test as context."""
    include = "".join(f"  {root / path}\n" for path in paths)
    return f"[run]\ndata_file = {data}\ndynamic_context = test_function\ninclude =\n{include}"


def run(root: Path, paths: Sequence[Path], files: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Reach:
    """Runs the quick tests in ``files`` once. Raises subprocess.CalledProcessError when they fail."""
    settings, data = folder / "coverage.ini", folder / "coverage.data"
    settings.write_text(configuration(root, paths, data))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run(
        [*command, "-m", "not slow and not soak", *files],
        cwd=root,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    measured = coverage.CoverageData(str(data))
    measured.read()
    node_ids = Names(root, files)
    contexts = {}
    for path in paths:
        by_line = measured.contexts_by_lineno(str(root / path))
        contexts[path] = {line: [node_ids.of(name) for name in names] for line, names in by_line.items()}
    return Reach(root, contexts)


class Names:
    """Node ids of test functions by the names that coverage gives them: ``module.function`` or ``module.Class.function``."""

    def __init__(self, root: Path, files: Sequence[str]) -> None:
        self._files = {".".join(Path(file).with_suffix("").parts): file for file in files}

    def of(self, context: str) -> str:
        """The node id, or OUTSIDE for a context that is no test of these files."""
        for module, file in self._files.items():
            if context.startswith(f"{module}."):
                return f"{file}::{context.removeprefix(f'{module}.').replace('.', '::')}"
        return OUTSIDE
