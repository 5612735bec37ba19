"""Which modules are pure, by program, and which unit tests run for a mutant of each."""

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Modules that decide and compute. Those that wait, write or talk are tested by other means.
PURE = {
    "lib": ("lib/thunderfleet_lib", "backoff parsing quantity rdma/*"),
    "operator": ("operator/thunderfleet_operator", "decide/* decide/status/* observe/*"),
    "placement": ("operator/thunderfleet_operator/placement", "**/*"),
    "agent": (
        "node-agent/thunderfleet_agent",
        "derive/* measure/schedule/* observe/parsers/* peers/dial_plan peers/reachability peers/token_bucket",
    ),
    "runner": (
        "runner/thunderfleet_runner",
        "faults framing group/attempts group/rendezvous group/stall group/status api/requests api/responses rank/stops "
        "net/jaccl net/ports sizing/arithmetic",
    ),
    "kubelet": (
        "kubelet/thunderfleet_kubelet",
        "pods/decide/* node/status serving/parameters containers/inputs/environment",
    ),
    "localcluster": ("localcluster/thunderfleet_localcluster", "fleet/* network/plan recorded/thunderbolt recorded/rdma"),
}
UNIT = {program: f"tests/unit/{'operator' if program == 'placement' else program}" for program in PURE}


@dataclass(frozen=True)
class Module:
    """A pure module. ``path`` is relative to the root of the checkout."""

    program: str
    path: Path

    @property
    def dotted(self) -> str:
        """The name that tests import."""
        return ".".join(self.path.with_suffix("").parts[1:])


def pure(root: Path, programs: Sequence[str]) -> list[Module]:
    """The pure modules of the programs. Raises ValueError when a pattern matches nothing, as after a move."""
    found = []
    for program in programs:
        folder, patterns = PURE[program]
        for pattern in patterns.split():
            paths = [path for path in sorted((root / folder).glob(f"{pattern}.py")) if path.name != "__init__.py"]
            if not paths:
                raise ValueError(
                    f"{program}: no module matches {folder}/{pattern}.py; correct PURE in tests/mutation/modules.py"
                )
            found += [Module(program, path.relative_to(root)) for path in paths]
    return found


def unit_tests(root: Path, module: Module) -> tuple[list[str], list[str]]:
    """Files of unit tests that import the module or its package, and all of the program's, relative to the root."""
    files = sorted((root / UNIT[module.program]).glob("test_*.py"))
    package = module.dotted.rpartition(".")[0]
    close = [file for file in files if {module.dotted, package} & _imports(file)]
    return [str(file.relative_to(root)) for file in close], [str(file.relative_to(root)) for file in files]


@functools.cache
def _imports(file: Path) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found
