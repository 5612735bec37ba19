"""Parts of the official Kubernetes client are loaded when they are used, and not before."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from thunderfleet_lib import clientparts

LOADED = """
import importlib, json, pkgutil, sys
import thunderfleet_cli
for one in pkgutil.walk_packages(thunderfleet_cli.__path__, "thunderfleet_cli."):
    importlib.import_module(one.name)
before = sorted(sys.modules)
import kubernetes
works = {
    "client": kubernetes.client.Configuration.__module__,
    "config": kubernetes.config.load_kube_config.__module__,
    "watch": kubernetes.watch.Watch.__module__,
    "aio": kubernetes.aio.watch.Watch.__module__,
}
print(json.dumps({"before": before, "works": works}))
"""

OF_EVERY_MAC = """
import json, sys
import {module}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
RARE = {"requests", "oauthlib", "requests_oauthlib", "websocket", "urllib3", "yaml", "dateutil", "cryptography", "h2"}


def loaded() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_program_loads_no_part_that_it_does_not_use_and_parts_work() -> None:
    found = loaded()
    below = [name for name in found["before"] if any(name.startswith(f"{part}.") for part in clientparts.PARTS)]
    assert "kubernetes.aio.client" in found["before"]
    assert below == [] and "requests" not in found["before"]
    assert found["works"] == {
        "client": "kubernetes.client.configuration",
        "config": "kubernetes.config.kube_config",
        "watch": "kubernetes.watch.watch",
        "aio": "kubernetes.aio.watch.watch",
    }


@pytest.mark.parametrize(
    ("module", "rare"),
    [
        ("thunderfleet_kubelet.cli, thunderfleet_kubelet.app", {*RARE, "pydantic"}),
        ("thunderfleet_agent.cli, thunderfleet_agent.agent", RARE),
        ("thunderfleet_controlplane.install.balance, thunderfleet_controlplane.balancer.learn", {*RARE, "pydantic"}),
    ],
)
def test_no_program_of_every_mac_keeps_a_library_that_it_needs_now_and_then(module: str, rare: set[str]) -> None:
    """They take 20 MB of the kubelet, and 7 MB of each for the synchronous client alone."""
    command = [sys.executable, "-c", OF_EVERY_MAC.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = set(json.loads(done.stdout))
    assert "kubernetes" in found
    assert found & rare == set()


@pytest.mark.parametrize("module", ["thunderfleet_runner.serving", "thunderfleet_kubelet.configfile"])
def test_no_program_searches_all_packages_for_plugins_of_pydantic(module: str) -> None:
    code = f"import {module}\nfrom pydantic.plugin import _loader\nprint(_loader._plugins)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "None"


PACKAGE = """
import runs
runs.count += 1
from late.part import VALUE
if runs.count == 1:
    raise ValueError("not yet")
NAME = VALUE + 1
"""


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package that is read late, whose code fails the first time; it counts in the module ``runs``."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late/__init__.py").write_text(PACKAGE)
    (tmp_path / "late/part.py").write_text("VALUE = 1")
    (tmp_path / "runs.py").write_text("count = 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(clientparts, "PACKAGES", {"late"})
    yield importlib.import_module("late")
    for name in ("late", "late.part", "runs"):
        sys.modules.pop(name, None)


def test_a_package_runs_its_code_once_at_the_first_use_of_its_names(late: ModuleType) -> None:
    assert importlib.import_module("late.part").VALUE == 1 and late.part.VALUE == 1
    assert "runs" not in sys.modules
    with pytest.raises(ValueError, match="not yet"):
        _ = late.NAME
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: late.NAME, range(4))) == {2}
    assert importlib.import_module("runs").count == 2
    with pytest.raises(AttributeError, match="module 'late' has no attribute 'OTHER'"):
        _ = late.OTHER
