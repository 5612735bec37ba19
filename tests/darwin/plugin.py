"""The pytest plugin: every test of the run, and every process that a test starts, is under the rules of macOS."""

import os
from pathlib import Path

import pytest

from tests.darwin import namespaces, rules

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "site"

if rules.PROC_VARIABLE not in os.environ:
    # Workers of pytest-xdist and the processes of tests inherit all of this.
    try:
        os.environ[rules.PROC_VARIABLE] = str(namespaces.enter())
    except OSError as error:
        raise pytest.UsageError(
            f"the rules of macOS need Linux and new namespaces: {error}; run as root, or allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        ) from error
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
rules.apply(Path(os.environ[rules.PROC_VARIABLE]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is about Linux itself."""
    linux = [item for item in items if item.get_closest_marker("linux")]
    if linux:
        config.hook.pytest_deselected(items=linux)
        items[:] = [item for item in items if item not in linux]
