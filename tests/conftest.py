"""How all tests run: which worker runs which file, which tests ``make check`` leaves out, and how long each test took."""

import json
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

# A shell starts background jobs with SIGINT ignored, and programs inherit that, so tests of Ctrl-C would never end. A
# program that a test starts resets a handler to the default, but keeps SIG_IGN.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that one worker runs, one after the other. Ranks of a real group take every processor while they wait for each other,
# so two groups at once take many times as long as one after the other. End-to-end files of one group share a fleet.
GROUPS = {
    "ranks": (
        "runner/test_generated_requests",
        "runner/test_generation_group",
        "runner/test_hostile_bodies",
        "runner/test_jaccl_group",
        "runner/test_lockstep_group",
        "runner/test_memory_at_work",
        "runner/test_openai_client",
        "runner/test_relay_group",
        "runner/test_stranded_memory",
        "runner/test_supervisor_process",
        "runner/test_unbatched_group",
        "runner/test_waiting_process",
    ),
    # test_faults uses the default fleet too and takes longer than these together, so it has a worker and a fleet to itself.
    "default fleet": (
        "e2e/test_bad_input",
        "e2e/test_lifecycle",
        "e2e/test_line",
        "e2e/test_monitoring",
        "e2e/test_trust_matrix",
    ),
}
# What takes longest starts first, so that no worker has a long file left when the others are done.
LONGEST = (
    "ranks",
    "agent/test_measure_peers",
    "runner/test_supervisor_group",
    "runner/test_sizing_families",
    "operator/test_placement_properties",
    "e2e/test_faults",
    "e2e/test_placement",
    "default fleet",
    "e2e/test_discovery",
    "e2e/test_measure",
    "e2e/test_placement_moves",
    "e2e/test_chaos",
    "e2e/test_localcluster",
    "e2e/test_kubelet",
)
SLOW = (
    "ranks",
    "agent/test_measure_peers",
    "runner/test_formation",
    "runner/test_liveness",
    "runner/test_sizing_families",
    "runner/test_sizing_models",
    "runner/test_strangers",
    "runner/test_supervisor_group",
)

_GROUP_OF = {file: group for group, files in GROUPS.items() for file in files}
_CPU = pytest.StashKey[float]()


def group_of(nodeid: str) -> str:
    """The files that one worker runs: a group of files, else the test's file."""
    file = "/".join(nodeid.partition("::")[0].removesuffix(".py").split("/")[-2:])
    return _GROUP_OF.get(file, file)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    config.addinivalue_line("markers", "slow: takes long; `make check` leaves it out")
    config.addinivalue_line("markers", "soak: more of the same promise; only `make soak` runs it")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes groups of files to the workers."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest groups first and marks the slow ones."""
    for item in items:
        if group_of(item.nodeid) in SLOW:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: LONGEST.index(group) if (group := group_of(item.nodeid)) in LONGEST else len(LONGEST))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Notes the processor time of this process and its children before the test."""
    item.stash[_CPU] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports the processor time of each phase of a test."""
    report = yield
    now = _cpu_seconds()
    report.user_properties = [*report.user_properties, ("cpu", now - item.stash[_CPU])]
    item.stash[_CPU] = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends a phase of a test to the file that THUNDERFLEET_TIMES names; tests/support/times.py prints the sums."""
    path = os.environ.get("THUNDERFLEET_TIMES")
    if path and "PYTEST_XDIST_WORKER" not in os.environ:
        cpu = next((value for name, value in reversed(report.user_properties) if name == "cpu"), 0.0)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.duration, cpu]) + "\n")


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
