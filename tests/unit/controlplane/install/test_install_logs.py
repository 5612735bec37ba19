"""Logs that launchd keeps open."""

import os
from pathlib import Path

from thunderfleet_controlplane.install.mac.logs import bound


def test_a_long_log_keeps_its_last_lines_and_its_writer(tmp_path: Path) -> None:
    log, short = tmp_path / "etcd.log", tmp_path / "approver.log"
    short.write_text("short\n")
    with log.open("ab") as writer:
        for number in range(1000):
            writer.write(f"line {number}\n".encode())
        writer.flush()
        inode = log.stat().st_ino
        assert bound([log, short, tmp_path / "missing.log"], limit=5000, kept=500) == [log]
        writer.write(b"after\n")
    lines = log.read_text().splitlines()
    assert lines[-2:] == ["line 999", "after"] and len(lines) < 60
    assert all(line.startswith("line ") for line in lines[:-1]), "no line is cut"
    assert log.stat().st_ino == inode and os.path.getsize(log) < 5000
    assert short.read_text() == "short\n"
    assert bound([log], limit=5000, kept=500) == []
