"""The recorded JACCL on its own: which Macs have one, its cables, and how MLX uses it."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import Layout, plan_layout
from thunderfleet_localcluster.recorded import jaccl
from thunderfleet_localcluster.recorded.folder import write_machine
from thunderfleet_localcluster.recorded.jaccl_faults import POINTS, checked_points

MAC = "model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true"
ASK = """
import json, mlx.core as mx
said = []
for options in ({"backend": "jaccl", "strict": True}, {"backend": "jaccl"}):
    try:
        said.append(mx.distributed.init(**options).size())
    except RuntimeError as error:
        said.append(str(error)[:40])
print(json.dumps([mx.distributed.is_available("jaccl"), mx.distributed.is_available("ring"), *said]))
"""


def layout() -> Layout:
    machines = f"  - {{name: a, {MAC}, jaccl: recorded}}\n  - {{name: b, {MAC}, bridge: [1]}}\n  - {{name: c, {MAC}}}\n"
    cables = "  - {a: 'a:1', b: 'b:1'}\n  - {a: 'a:2', b: 'c:1'}\n"
    return plan_layout(parse_fleet(f"machines:\n{machines}cables:\n{cables}"), "namespaces")


def test_only_a_mac_that_the_fleet_gives_one_has_it(tmp_path: Path) -> None:
    for name in "ab":
        write_machine(layout(), layout().machine(name), tmp_path / name / "bin")
    assert (tmp_path / "a" / "python" / "jaccl.json").exists()
    assert not (tmp_path / "b" / "python" / "jaccl.json").exists()
    assert (tmp_path / "b" / "python" / "sitecustomize.py").exists()


def test_it_knows_both_ends_of_its_cables() -> None:
    known = jaccl.record(layout(), layout().machine("a"))["devices"]
    one, two = list(known.values())[:2]
    # b's end is in a bridge and has no address.
    assert (one["peer"], one["active"]) == (None, True)
    far = layout().machine("c").end(1)
    assert far is not None and far.address is not None
    assert two["peer"] == str(far.address.ip) != two["address"]


def test_recorded_mlx_has_jaccl_and_refuses_missing_settings_like_jaccl(tmp_path: Path) -> None:
    write_machine(layout(), layout().machine("a"), tmp_path / "bin")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLX_", "JACCL_"))}
    for folder, expected in (
        (tmp_path / "python", [True, True, "[jaccl] You need to provide via environm", 1]),
        (tmp_path / "bin", [False, True, "Cannot initialize jaccl distributed back", 1]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", ASK],
            env={**environment, "PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([{"at": "nowhere"}], "unknown point 'nowhere'; allowed: find_device, "),
        ([{}], "unknown point None"),
        ([{"at": "rtr", "often": 2, "a": 1}], "unknown keys of a point: a, often; allowed: at, errno"),
        ([{"at": "wire"}], "swapAfterBytes or repeatAfterBytes, a number of bytes of at least 0"),
        ([{"at": "values", "aboveBytes": 5}], '"values" needs aboveBytes and belowBytes, numbers of bytes'),
        ([{"at": "values", "aboveBytes": 5, "belowBytes": -5}], "a number of bytes of at least 0"),
        ([{"at": "rtr", "aboveBytes": 5, "belowBytes": 9}], "other points must not have them"),
        ([{"at": "values", "aboveBytes": 5, "belowBytes": 9, "how": "odd"}], '"how" is negated or stale'),
        ([{"at": "rtr", "how": "stale"}], 'for the point "values" only'),
        ([{"at": "rtr", "peer": 1}], 'aboveValue and peer are numbers of at least 0, and for the point "values" only'),
        ([{"at": "values", "aboveBytes": 5, "belowBytes": 9, "aboveValue": -1}], "aboveValue and peer are numbers"),
        ([{"at": "wire", "flipAfterBytes": -1}], '"wire" needs flipAfterBytes'),
        ([{"at": "wire", "flipAfterBytes": True}], '"wire" needs flipAfterBytes'),
        ([{"at": "wire", "flipAfterBytes": 5, "loseAfterBytes": 5}], '"wire" needs flipAfterBytes, '),
        ([{"at": "rtr", "flipAfterBytes": 5}], "other points must not have them"),
        (["rtr"], "must be a JSON list"),
        ({"at": "rtr"}, "must be a JSON list"),
    ],
)
def test_unknown_points_are_refused_with_the_known_ones(points: object, message: str) -> None:
    with pytest.raises(LocalClusterError, match=message) as caught:
        checked_points(points)
    assert caught.value.usage


@pytest.mark.parametrize(
    "points", [None, [], [{"at": "send", "errno": 1}, {"at": "rtr", "hang": True}, {"at": "wire", "loseAfterBytes": 0}]]
)
def test_known_points_are_taken(points: object) -> None:
    assert checked_points(points) == (points or [])


def test_no_points_remove_the_control_file(tmp_path: Path) -> None:
    control = tmp_path / "control.json"
    slow = {"at": "rtr", "delaySeconds": 1, "fail": False}
    jaccl.write_control([slow], tmp_path)
    assert json.loads(control.read_text()) == {"points": [slow]}
    jaccl.write_control([], tmp_path)
    jaccl.write_control([], tmp_path)
    assert not control.exists()


def test_the_points_are_those_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(jaccl.__file__).parent / "python"))
    assert tuple(importlib.import_module("recorded_jaccl").POINTS) == POINTS
