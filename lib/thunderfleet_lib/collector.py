"""Keeps Python's garbage collector from the modules that a program imports.

Modules stay as long as the program runs, so the collector finds nothing in them. But it would look through their objects again
and again, which is a tenth of the CPU time that the imports of a large program take.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collections within the block, which should do nothing but import; later ones do not look at what exists at its end.

    Such an object is still freed when the last reference to it goes, but not if it is part of a cycle.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
