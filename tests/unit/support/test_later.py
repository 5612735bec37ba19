"""Libraries that few tests use are not imported when tests are collected."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = ("tests/unit/runner/api/clients/test_openai_client.py", "tests/unit/runner/api/clients/test_other_dialects.py")
COLLECTED = f"""
import sys
import pytest

class Look:
    def pytest_collection_finish(self, session):
        print("collected", len(session.items), sorted({{"openai", "anthropic"}} & set(sys.modules)))

sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *{FILES!r}], plugins=[Look()]))
"""


def test_collecting_tests_imports_no_client() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("collected")]
    assert done.returncode == 0 and len(said) == 1, done.stdout + done.stderr
    assert said[0].endswith(" []"), "pytest has asked a `Later` for a name of its own, which has imported the library"
