"""A copy of the checkout in which mutants are tried, so that the checkout itself stays as it is."""

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.modules import Module, unit_tests
from tests.mutation.mutants import Mutant

PACKAGES = ("crds", "lib", "operator", "node-agent", "runner", "kubelet", "localcluster")
LEAST_SECONDS = 20.0
"""CPU seconds that any run of tests may take. A mutant that loops is ended by its CPU time, so that a busy machine, on which
tests take longer, does not count as having noticed it."""
WALL_FACTOR = 6
"""A mutant that waits is ended after this many times its CPU seconds."""
BASELINE_SECONDS = 600.0
NO_TESTS = 5


class TrialError(Exception):
    """The tests do not pass without a mutant."""


class Trial:
    """A copy of the checkout's tracked and new files."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        self._baselines: dict[tuple[str, ...], float] = {}
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)

    def noticed_by(self, mutant: Mutant) -> str:
        """The tests that fail with the mutant: "close" ones, "all" of the program, or "" for none. Raises TrialError."""
        path = self._folder / mutant.module.path
        original = path.read_text()
        for name, files in zip(("close", "all"), self._tests(mutant.module), strict=True):
            limit = max(LEAST_SECONDS, 4 * self._baseline(files)) if files else 0.0
            path.write_text(mutant.code)
            try:
                if files and not self._passes(files, limit):
                    return name
            finally:
                path.write_text(original)
        return ""

    def _tests(self, module: Module) -> tuple[list[str], list[str]]:
        close, every = unit_tests(self._folder, module)
        return close, [file for file in every if file not in close]

    def _baseline(self, files: Sequence[str]) -> float:
        """Seconds, by the clock, that the tests take without a mutant."""
        key = tuple(files)
        if key not in self._baselines:
            began = time.monotonic()
            if not self._passes(files, BASELINE_SECONDS):
                raise TrialError(f"without a mutant the tests fail: {' '.join(files)}")
            self._baselines[key] = time.monotonic() - began
        return self._baselines[key]

    def _passes(self, files: Sequence[str], seconds: float) -> bool:
        """Whether the quick tests of these files pass within this CPU time."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self._folder / package) for package in PACKAGES),
            # A mutant may have the size and time of the module before it, by which Python knows its bytecode.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not soak")
        limited = ("sh", "-c", f'ulimit -t {math.ceil(seconds)}; exec "$@"', "sh")
        command = [*limited, sys.executable, "-m", "pytest", *options, *files]
        with subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(WALL_FACTOR * seconds) in (0, NO_TESTS)
            except subprocess.TimeoutExpired:
                return False
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
