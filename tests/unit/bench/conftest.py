"""The benchmarks are run from the checkout's root (``python -m tests.bench``); their tests find them however they are run."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
