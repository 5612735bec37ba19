"""The pages of docs/reference are what the code says now, and links between pages lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "runner/README.md"))


def test_the_reference_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs/generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, f"{done.stderr}\nrun: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


def test_every_reason_has_a_row_and_every_program_a_section() -> None:
    from thunderfleet_crds.reasons import Reason

    reasons = (ROOT / "docs/reference/reasons.md").read_text(encoding="utf-8")
    assert all(f"| `{reason}` |" in reasons for reason in Reason)
    commands = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    programs = ("thunderfleet", *(f"thunderfleet-{name}" for name in ("operator", "agent", "kubelet", "runner")))
    assert all(f"\n## {program}\n" in commands for program in programs)
