"""Commands to the supervisor of a cluster."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_localcluster.client.control import send_command
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError

LONG = "a-folder-whose-path-is-longer-than-the-address-of-a-socket-may-be"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterFolder]:
    """A cluster in a deep folder; its supervisor returns each command."""
    root = tmp_path / LONG / LONG
    root.mkdir(parents=True)
    # As the supervisor does.
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("supervisor.sock")
        listener.listen()
        monkeypatch.undo()

        def serve() -> None:
            while True:
                channel, _ = listener.accept()
                with channel:
                    line = channel.makefile("rb").readline()
                    if json.loads(line) == {"do": "end"}:
                        return
                    channel.sendall(line)

        thread = threading.Thread(target=serve)
        thread.start()
        yield ClusterFolder(root)
        monkeypatch.chdir(root)
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect("supervisor.sock")
            channel.sendall(b'{"do": "end"}\n')
        thread.join()


def test_a_command_reaches_a_supervisor_in_a_deep_folder(folder: ClusterFolder) -> None:
    assert len(os.fsencode(folder.socket)) > 108
    assert send_command(folder, {"do": "status"}, 10) == {"do": "status"}


def test_a_relative_folder_is_found_too(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.root.parent)
    assert send_command(ClusterFolder(Path(folder.root.name)), {"do": "status"}, 10) == {"do": "status"}


def test_without_a_supervisor_the_message_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=f"cannot reach the process of the cluster in {tmp_path}"):
        send_command(ClusterFolder(tmp_path), {"do": "status"}, 10)
