"""Applies the rules of macOS in a Python that a test has started."""

import os
from pathlib import Path

from tests.darwin import rules

rules.apply(Path(os.environ[rules.PROC_VARIABLE]))
