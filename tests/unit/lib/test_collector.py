"""The garbage collector leaves modules alone that programs import, and works otherwise."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
from thunderfleet_lib import collector

# What the collector has done when a program refuses its command line, which it does after its imports.
REFUSED = """
import gc, sys
from {module}.cli import main
assert main({words}) == 2
assert gc.isenabled() and "{imported}" in sys.modules
print(gc.get_stats()[1]["collections"])
"""


class Cycle:
    """Refers to itself, so only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()
    gc.unfreeze()


def test_it_finds_later_garbage_but_does_not_look_at_modules() -> None:
    with collector.paused():
        module = Cycle()
    found = gc.get_objects()
    assert not any(one is module for one in found)
    garbage = Cycle()
    gone = weakref.ref(garbage)
    del garbage
    gc.collect()
    assert gone() is None


def test_it_works_again_after_the_imports_also_if_they_fail() -> None:
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), collector.paused():
        raise ImportError
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("module", "words", "imported"),
    [
        ("thunderfleet_operator", ["run", "--ports", "20000-20999", "--ring-ports", "20999-29999"], "kopf"),
        ("thunderfleet_agent", ["run", "--node-name", ""], "thunderfleet_agent.rounds"),
        ("thunderfleet_runner", ["serve", "--pod", ""], "thunderfleet_runner.supervisor"),
    ],
)
def test_programs_import_without_it(module: str, words: list[str], imported: str) -> None:
    """Without the pause, it looks a dozen times and more at what has survived once."""
    code = REFUSED.format(module=module, words=words, imported=imported)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) <= 8
