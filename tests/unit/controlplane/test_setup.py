"""What a local control plane needs on disk, and how its programs run."""

from pathlib import Path

from thunderfleet_controlplane.components import Endpoints
from thunderfleet_controlplane.setup import prepare

AT = Endpoints("192.168.64.1", 6443, "127.0.0.1", 2379, 2380, 10257, 10259, loopback=False)


def test_programs_that_mostly_wait_use_one_processor(tmp_path: Path) -> None:
    programs = prepare("local", tmp_path, Path("/programs"), AT, ["127.0.0.1"]).programs
    single = {name for name, program in programs.items() if program.env.get("GOMAXPROCS") == "1"}
    assert single == {"kube-controller-manager", "kube-scheduler"}
