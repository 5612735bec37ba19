"""Which program ``kubectl exec`` and exec probes start."""

import json
import os
from pathlib import Path

import pytest
from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.streams import exec_session
from thunderfleet_kubelet.containers.streams.exec_session import MAX_FOLDERS


def container(root: Path, path: str) -> PodFolder:
    """A pod with the container ``main``, which has this PATH."""
    folder = PodFolder(root / "pod")
    attempt = folder.attempt("main", 0)
    attempt.mkdir(parents=True)
    user = {"uid": os.geteuid(), "gid": os.getegid(), "groups": []}
    (attempt / "spec.json").write_text(json.dumps({"env": {"PATH": path}, "cwd": str(root), **user}))
    return folder


async def test_the_program_is_the_first_on_path(tmp_path: Path) -> None:
    for number in (1, 2):
        file = tmp_path / str(number) / "words"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\necho {number}\n")
        file.chmod(0o755)
    (tmp_path / "0" / "words").mkdir(parents=True)
    pod = container(tmp_path, ":".join(str(tmp_path / name) for name in ("missing", "0", "2", "1")))
    assert await exec_session.run(pod, "main", 0, ["words"], 10) == (0, "2")


async def test_a_long_path_is_not_searched_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container can have a PATH of thousands of folders, and all pods wait while it is searched."""
    looked: list[str] = []

    def isfile(path: str) -> bool:
        looked.append(path)
        return path == "/bin/sh"

    monkeypatch.setattr(os.path, "isfile", isfile)
    pod = container(tmp_path, ":".join(["/missing"] * 10_000 + ["/bin"]))
    with pytest.raises(FileNotFoundError, match="command 'sh' not found on PATH"):
        await exec_session.start(pod, "main", 0, ["sh", "-c", "true"], stdin=False, tty=False)
    assert len(looked) == MAX_FOLDERS
