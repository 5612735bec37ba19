"""Renders the chart with the real helm, without a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.assets import CONTROL_PLANE, digest, given
from thunderfleet_localcluster.paths import cache_folder

from tests.support import yamltext

Json = dict[str, Any]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[Json]]

SECONDS = 60


def documents(text: str) -> list[Json]:
    """The objects in the output of ``helm template``."""
    return [item for item in yamltext.load_all(text) if item]


@pytest.fixture(scope="session")
def chart() -> Path:
    return Path(__file__).parents[3] / "charts" / "thunderfleet"


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Runs helm with a temporary home folder; ``helm("lint", …)``."""
    home = tmp_path_factory.mktemp("helm")
    # Does not build helm, which takes minutes: `make test` does that before the tests.
    program = (given() or cache_folder() / CONTROL_PLANE.name / digest(CONTROL_PLANE)) / "helm"
    if not program.exists():
        pytest.skip(f"{program} is not built: make programs")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            # To collect garbage takes a quarter of its time, and it ends soon.
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "GOGC": "off"},
        )

    return run


@pytest.fixture(scope="session")
def render(helm: Helm, chart: Path) -> Render:
    """The objects of a release: ``render("--set", "a=b")``."""
    texts: dict[tuple[str, ...], str] = {}

    def run(*arguments: str) -> list[Json]:
        # A file of values may have changed.
        if arguments not in texts or "--values" in arguments:
            done = helm("template", "thunderfleet", chart, "--namespace", "thunderfleet-system", *arguments)
            assert done.returncode == 0, done.stderr
            texts[arguments] = done.stdout
        # Parsed again, because a test may change its objects.
        return documents(texts[arguments])

    return run
