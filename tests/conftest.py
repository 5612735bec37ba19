"""How all tests run: in which order and which worker, which of them ``make check`` leaves out, and how long each took."""

import gc
import json
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.suite import rewriting
from tests.support.suite.order import SLOW, group_of, turn
from tests.support.waiting import NEAR_LIMIT

# A shell starts background jobs with SIGINT ignored, and programs inherit that, so tests of Ctrl-C would never end. A
# program that a test starts resets a handler to the default, but keeps SIG_IGN.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_CPU = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    config.addinivalue_line("markers", "slow: takes long; `make check` leaves it out")
    config.addinivalue_line("markers", "linux: about Linux itself; `make darwin` leaves it out")
    config.addinivalue_line("markers", "soak: more of the same promise; only `make soak` runs it")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Does once what each worker would do: pytest-xdist starts them after this."""
    if "PYTEST_XDIST_WORKER" not in os.environ and (session.config.getoption("numprocesses", None) or 0) > 1:
        rewriting.rewrite_once(session.config, rewriting.files_of(session.config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collects no garbage while tests are collected: there is little, and each time all of them would be walked over."""
    gc.disable()


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
    items.sort(key=lambda item: turn(item.nodeid))


def pytest_collection_finish() -> None:
    """Leaves thousands of tests and their modules, which stay until the end, out of each collection of garbage from now on.

    With them, the garbage so far stays: to find it takes a second of processor time of each worker, and there is little.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Notes the processor time of this process and its children before the test."""
    item.stash[_CPU] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports the processor time of each phase of a test, and its waits that took more than half of their limit."""
    report = yield
    now = _cpu_seconds()
    report.user_properties = [
        *report.user_properties,
        ("cpu", now - item.stash[_CPU]),
        *(("wait", list(wait)) for wait in NEAR_LIMIT),
    ]
    NEAR_LIMIT.clear()
    item.stash[_CPU] = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends a phase of a test to the file that THUNDERFLEET_TIMES names; tests/support/suite/times.py prints the sums."""
    path = os.environ.get("THUNDERFLEET_TIMES")
    if path and "PYTEST_XDIST_WORKER" not in os.environ:
        # Those of an earlier phase of the test come first.
        last = max((at for at, (name, _) in enumerate(report.user_properties) if name == "cpu"), default=None)
        found = report.user_properties[last:] if last is not None else [("cpu", 0.0)]
        waits = [value for name, value in found if name == "wait"]
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.duration, found[0][1], waits]) + "\n")


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
