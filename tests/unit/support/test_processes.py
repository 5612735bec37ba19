"""A zombie exists and is not alive."""

import os
import subprocess
import sys

from tests.support.processes import alive, exists
from tests.support.waiting import until


def test_a_process_is_alive_until_it_ends_and_exists_until_its_parent_has_waited() -> None:
    assert alive(os.getpid()) and exists(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert alive(process.pid)
        process.kill()
        until(lambda: not alive(process.pid), "the process is a zombie", pause=0.01)
        assert exists(process.pid)
    assert not exists(process.pid)
