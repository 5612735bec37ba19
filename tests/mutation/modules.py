"""Which modules are pure, by program, and the unit tests of each program."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Modules that decide and compute. Those that wait, write or talk are tested by other means.
PURE = {
    "lib": ("lib/thunderfleet_lib", "backoff csr/* host/parsing quantity rdma/*"),
    "operator": (
        "operator/thunderfleet_operator",
        "decide/* decide/group/* decide/placing/* decide/status/* observe/* observe/fleet/* observe/objects/*",
    ),
    "placement": ("operator/thunderfleet_operator/placement", "**/*"),
    "agent": (
        "node-agent/thunderfleet_agent",
        "derive/* measure/schedule/* observe/parsers/* peers/dial_plan peers/reachability peers/token_bucket",
    ),
    "runner": (
        "runner/thunderfleet_runner",
        "faults framing group/decide/attempts group/decide/rendezvous group/decide/stall group/decide/status "
        "api/prepare api/openai/* api/request/* api/answer/* rank/answers/stops net/jaccl net/ports sizing/arithmetic "
        "sizing/sizes",
    ),
    "kubelet": (
        "kubelet/thunderfleet_kubelet",
        "pods/decide/* node/status serving/parameters containers/inputs/environment",
    ),
    "localcluster": (
        "localcluster/thunderfleet_localcluster",
        "fleet/* network/plan recorded/thunderbolt recorded/rdma",
    ),
    "view": ("view/thunderfleet_view", "details facts follow live/fleet problems why web/guard"),
    "cli": (
        "cli/thunderfleet_cli",
        "run/manifest doctor/checks/check doctor/checks/cluster doctor/checks/network doctor/checks/power "
        "doctor/checks/security doctor/checks/selftest doctor/checks/system",
    ),
}
UNIT = {program: (f"tests/unit/{program}",) for program in PURE} | {
    "placement": ("tests/unit/operator",),
    "view": ("tests/unit/view", "tests/unit/cli/test_view.py"),
}
"""Folders and files with the unit tests of each program. Those of commands that print a view test the view as well."""


@dataclass(frozen=True)
class Module:
    """A pure module. ``path`` is relative to the root of the checkout."""

    program: str
    path: Path


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


def unit_tests(root: Path, module: Module) -> list[str]:
    """Files of unit tests of the module's program, relative to the root."""
    places = [root / place for place in UNIT[module.program]]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("test_*.py")))]
    return [str(file.relative_to(root)) for file in files]
