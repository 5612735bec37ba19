"""The approver's daemon while the API server does not listen yet."""

import socket
import subprocess
import sys
import threading
import time

import pytest
from thunderfleet_controlplane.install import approve

STARTED = """
import sys
from thunderfleet_controlplane.install import approve

def waits(server):
    print(server, *sorted({"aiohttp", "kubernetes", "cryptography", "pydantic"} & set(sys.modules)))
    raise SystemExit

approve.until_listening = waits
approve.main(["--server", "https://127.0.0.1:6443", "--pki", "/none", "--address", "192.168.64.11"])
"""


def _url(bound: socket.socket) -> str:
    return f"https://127.0.0.1:{bound.getsockname()[1]}"


def test_it_imports_large_libraries_only_when_the_api_server_listens() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["https://127.0.0.1:6443"]


def test_it_waits_until_the_api_server_listens(bound: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    def pause(seconds: float) -> None:
        looked.set()
        threading.Event().wait(0.01)

    monkeypatch.setattr(time, "sleep", pause)
    waiting = threading.Thread(target=approve.until_listening, args=[_url(bound)])
    waiting.start()
    assert looked.wait(30) and waiting.is_alive()
    bound.listen()
    waiting.join(30)
    assert not waiting.is_alive()


def test_it_does_not_wait_for_ever(bound: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approve, "LISTEN_SECONDS", 0.1)
    monkeypatch.setattr(approve, "LOOK_SECONDS", 0.01)
    approve.until_listening(_url(bound))
