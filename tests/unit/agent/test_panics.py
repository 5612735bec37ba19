"""Reports of kernel panics."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from thunderfleet_agent.derive.profile import last_panic
from thunderfleet_agent.observe import panics
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.panics import Panic, newest, text_of

NEW = (
    '{"bug_type":"210","timestamp":"2026-11-20 10:00:00.00 +0000"}\n'
    '{"build" : "macOS 26.3 (25D125)", "panicString" : "panic(cpu 3 caller 0xfffffe0028): \\"completeMemory() prepare count '
    'underflow\\" @IOGPUMemory.cpp:550\\nDebugger message: panic\\nMemory ID: 0x6", "other": 1}\n'
)
OLD = 'panic(cpu 8 caller 0xffffff80017729eb): "zalloc: zone map exhausted"@/zalloc.c:3627\nBacktrace (CPU 8), Frame\n'


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (NEW, 'panic(cpu 3 caller 0xfffffe0028): "completeMemory() prepare count underflow" @IOGPUMemory.cpp:550'),
        (OLD, 'panic(cpu 8 caller 0xffffff80017729eb): "zalloc: zone map exhausted"@/zalloc.c:3627'),
        ('{"panicString": "watchdog timeout\\nmore"}', "watchdog timeout"),
        ('{"panicString": "a\\u0007b\\tc"}', "a b c"),
        ("nothing of the kind", ""),
        ("", ""),
    ],
)
def test_what_the_kernel_said(report: str, text: str) -> None:
    assert text_of(report.encode()) == text


def test_long_and_broken_reports_are_bounded() -> None:
    assert len(text_of(("panic(cpu 0 " + "x" * 10_000).encode())) == panics.CHARACTERS
    assert text_of(b'\xff\xfe"panicString": "\\ud800 odd"') == "odd"


def test_the_newest_report_counts(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing") is None
    for name, text, at in (
        ("panic-full-2026-11-19-100000.0002.panic", OLD, 100),
        ("panic-full-2026-11-20-100000.0002.ips", NEW, 200),
        ("Safari-2026-11-21.ips", NEW, 300),
    ):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (at, at))
    os.mkfifo(tmp_path / "panic-full-2026-11-22-100000.0002.panic")
    (tmp_path / "panic-full-2026-11-23-100000.0002.panic").symlink_to("/dev/zero")
    found = newest(tmp_path)
    assert found is not None and found.at == datetime.fromtimestamp(200, UTC) and "IOGPUMemory" in found.text


def test_a_report_that_a_user_replaces_by_a_link_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (tmp_path / "secret").write_text(NEW)
    (folder / "panic-full-2026-11-19-100000.0002.panic").symlink_to(tmp_path / "secret")
    # It was a file when the folder was listed.
    monkeypatch.setattr(Path, "lstat", Path.stat)
    assert newest(folder) is None


def test_the_profile_says_what_helps() -> None:
    at = datetime(2026, 11, 20, tzinfo=UTC)
    assert last_panic(Facts()) is None
    plain = last_panic(Facts(panic=Panic(at, "watchdog timeout")))
    assert plain is not None and (plain.time, plain.message) == (at, "watchdog timeout")
    memory = last_panic(Facts(panic=Panic(at, "panic(cpu 3): x @IOGPUMemory.cpp:550")))
    assert memory is not None and "; set spec.runtime.wiredLimit: Unlimited" in memory.message
