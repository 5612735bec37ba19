"""Commands for the tests: small executables in a folder at the front of PATH."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Commands:
    """A folder of executables."""

    folder: Path

    def script(self, command: str, body: str) -> None:
        """Writes the executable ``command``, a shell script. By rename, because a running script must not change."""
        new = self.folder / f"{command}.new"
        new.write_text(f"#!/bin/sh\n{body}\n")
        new.chmod(0o755)
        new.rename(self.folder / command)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """An empty folder at the front of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Commands(folder)
