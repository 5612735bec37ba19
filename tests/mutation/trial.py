"""A copy of the checkout in which mutants are tried, so that the checkout itself stays as it is."""

import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutation import reach
from tests.mutation.modules import UNIT, pure, unit_tests
from tests.mutation.mutants import Mutant
from tests.mutation.reach import Reach

PACKAGES = ("crds", "lib", "view", "operator", "node-agent", "runner", "kubelet", "controlplane", "localcluster", "cli")
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
    """A copy of the checkout's tracked and new files. Several trials share ``reaches``."""

    def __init__(self, root: Path, folder: Path, reaches: "Reaches") -> None:
        self._folder, self._reaches = folder, reaches
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
        """What failed with the mutant: "reached" for the tests that run its line, "all" for those of its program, or "".

        Raises TrialError.
        """
        path = self._folder / mutant.module.path
        original = path.read_text()
        for name, tests in self._tests(mutant):
            limit = max(LEAST_SECONDS, 4 * self._baseline(tests))
            path.write_text(mutant.code)
            try:
                if not self._passes(tests, limit):
                    return name
            finally:
                path.write_text(original)
        return ""

    def _tests(self, mutant: Mutant) -> Iterator[tuple[str, list[str]]]:
        """Tests to run one after the other. A line that runs outside of tests may affect any of them."""
        files = unit_tests(self._folder, mutant.module)
        reached, outside = self._reaches.of(mutant.module.program, self).tests(mutant.module.path, mutant.line)
        if reached:
            yield "reached", reached
        if outside and files:
            yield "all", files

    def measure(self, programs: Sequence[str]) -> Reach:
        """Which tests run which lines of the pure modules of these programs, which have the same tests."""
        modules = pure(self._folder, programs)
        with tempfile.TemporaryDirectory(prefix="reach-") as folder:
            try:
                return reach.run(
                    self._folder, [module.path for module in modules], unit_tests(self._folder, modules[0]), Path(folder),
                    self._environment(),
                )  # fmt: skip
            except subprocess.CalledProcessError as error:
                raise TrialError(f"without a mutant the unit tests of {programs[0]} fail:\n{error.stdout}") from error

    def _baseline(self, tests: Sequence[str]) -> float:
        """Seconds, by the clock, that the tests take without a mutant."""
        key = tuple(tests)
        if key not in self._baselines:
            began = time.monotonic()
            if not self._passes(tests, BASELINE_SECONDS):
                raise TrialError(f"without a mutant these tests fail: {' '.join(tests)}")
            self._baselines[key] = time.monotonic() - began
        return self._baselines[key]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self._folder / package) for package in PACKAGES),
            # A mutant may have the size and time of the module before it, by which Python knows its bytecode.
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _passes(self, tests: Sequence[str], seconds: float) -> bool:
        """Whether the quick ones of these files or tests pass within this CPU time."""
        options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not soak")
        limited = ("sh", "-c", f'ulimit -t {math.ceil(seconds)}; exec "$@"', "sh")
        command = [*limited, sys.executable, "-m", "pytest", *options, *tests]
        with subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment(),
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


class Reaches:
    """The reach of the programs that have the same tests, measured once, by the first trial that needs it."""

    def __init__(self) -> None:
        self._locks = {places: threading.Lock() for places in UNIT.values()}
        self._known = dict[tuple[str, ...], Reach]()

    def of(self, program: str, trial: Trial) -> Reach:
        """Raises TrialError."""
        places = UNIT[program]
        with self._locks[places]:
            if places not in self._known:
                self._known[places] = trial.measure([name for name in UNIT if UNIT[name] == places])
            return self._known[places]
