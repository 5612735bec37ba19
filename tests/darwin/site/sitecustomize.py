"""Applies the rules of macOS in a Python that a test has started, and then what else would have been applied there."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from tests.darwin import rules

rules.apply(Path(os.environ[rules.PROC_VARIABLE]))

# Python imports the first module of this name only. Recorded Macs have one too.
_others = [path for path in sys.path if path != os.path.dirname(__file__)]
_next = PathFinder.find_spec("sitecustomize", _others)
if _next is not None and _next.loader is not None:
    _next.loader.exec_module(module_from_spec(_next))
