"""How many more files a process can open, counted by opening files."""

import json
import resource
import subprocess
import sys

import pytest
from thunderfleet_lib.host import descriptors as module
from thunderfleet_lib.host.descriptors import allow_descriptors, descriptors

STARVED = """
import json, resource, socket
from thunderfleet_lib.host.descriptors import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
counted, kept = [], []
while True:
    found = descriptors()
    counted.append(found.free)
    try:
        kept.append(socket.socket())
    except OSError:
        break
print(json.dumps(counted))
"""


def test_every_file_that_is_opened_leaves_one_less_until_none_can_be_opened() -> None:
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60, check=True)
    counted = json.loads(done.stdout)
    assert len(counted) > 10 and counted == list(range(len(counted) - 1, -1, -1))


def test_what_has_no_limit_or_cannot_be_counted_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descriptors() is not None
    monkeypatch.setattr(module, "FOLDER", "/nowhere")
    assert descriptors() is None
    monkeypatch.undo()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert descriptors() is None


def test_a_listening_process_raises_its_limit_of_descriptors() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(module.WANTED, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
