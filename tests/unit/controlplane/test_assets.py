"""Building the control plane: progress, and no partial results. Go is a script here."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane import assets
from thunderfleet_controlplane.assets import (
    CONTROL_PLANE,
    AssetsError,
    Bundle,
    build,
    digest,
    find_assets,
    go_version,
    wanted_go,
)
from thunderfleet_lib.host.hostcmd import Output

from tests.support.processes import exists

BUNDLE = Bundle("controlplane", {"one": ("example/one", 10), "two": ("example/two", 20)}, "-X a=b")


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Go that writes its arguments into the program that it builds. Tests may append to it."""
    folder = tmp_path / "go-bin"
    folder.mkdir()
    script = folder / "go"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = version ] && { echo "go version go1.99.1 linux/amd64"; exit 0; }\n'
        'for word in "$@"; do [ "$last" = -o ] && out=$word; last=$word; done\n'
        'echo "$@" > "$out"; chmod +x "$out"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return script


def test_a_program_of_the_module_itself_is_built_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "module", tmp_path)
    for name in ("go.mod", "go.sum", "main.go"):
        (tmp_path / name).write_text("before")
    before = digest(BUNDLE)
    assert digest(BUNDLE) == before
    (tmp_path / "main.go").write_text("after")
    assert digest(BUNDLE) != before


def test_builds_once(go: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    folder = build(BUNDLE, tmp_path / "cache", events.append)
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]
    assert "-ldflags -X a=b" in (folder / "one").read_text() and (folder / "one").read_text().endswith("example/one\n")
    assert events[0]["state"] == "start" and events[-1]["state"] == "done"
    assert {event["program"] for event in events if event["state"] == "progress"} == {"one", "two"}
    assert all(event["of"] == 2 and event["expected"] >= 60 for event in events if event["state"] == "progress")
    events.clear()
    assert build(BUNDLE, tmp_path / "cache", events.append) == folder
    assert not events


def test_a_failed_build_leaves_nothing_and_says_why(go: Path, tmp_path: Path) -> None:
    go.write_text(go.read_text() + 'case "$*" in *two) echo "cannot find module two" >&2; exit 1;; esac\n')
    with pytest.raises(AssetsError, match=r"building two failed(.|\n)*cannot find module two"):
        build(BUNDLE, tmp_path / "cache", lambda event: None)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_an_interrupted_build_leaves_nothing(go: Path, tmp_path: Path) -> None:
    go.write_text(go.read_text() + 'case "$*" in *two) echo $$ > "$PWD_FILE"; sleep 600;; esac\n')
    marker = tmp_path / "pid"
    code = (
        "import sys, pathlib\n"
        "from thunderfleet_controlplane.assets import Bundle, build\n"
        f"bundle = Bundle('controlplane', {dict(BUNDLE.programs)!r}, '')\n"
        f"build(bundle, pathlib.Path({str(tmp_path / 'cache')!r}), lambda event: print(event, flush=True))\n"
    )
    env = {**os.environ, "PWD_FILE": str(marker)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"'two'" in line and marker.exists() and marker.read_text():
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    assert not exists(int(marker.read_text()))


def test_the_user_may_name_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(AssetsError, match="has no etcd, kubectl, helm") as caught:
        find_assets(lambda event: None, CONTROL_PLANE, tmp_path / "cache")
    assert caught.value.usage
    for name in CONTROL_PLANE.programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_assets(lambda event: None, CONTROL_PLANE, tmp_path / "cache") == tmp_path


def test_an_old_go_is_not_taken(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go.write_text(go.read_text().replace("go1.99.1", "go1.20"))
    asked: list[Path] = []
    monkeypatch.setattr(assets, "_pip_install", lambda requirements, target: asked.append(requirements))
    with pytest.raises(AssetsError, match=r"Go 1\.26\.0 or newer is needed"):
        build(CONTROL_PLANE, tmp_path / "cache", lambda event: None)
    assert asked and asked[0].is_file()


def test_too_little_space_is_reported_first(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "FREE_BYTES", 1 << 62)
    with pytest.raises(AssetsError, match="THUNDERFLEET_CACHE"):
        build(BUNDLE, tmp_path / "cache", lambda event: None)


def test_what_goes_in_names_the_folder() -> None:
    assert digest(BUNDLE) != digest(Bundle("controlplane", BUNDLE.programs, "-X a=c"))
    assert wanted_go(CONTROL_PLANE.module) >= (1, 26)
    assert go_version("/nowhere/go") == (0,)


def test_an_environment_without_pip_gets_one_for_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in those that uv makes."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    done = assets._pip(tmp_path, ["--version"])
    assert isinstance(done, Output) and str(tmp_path) in done.text


def test_pip_is_not_that_of_the_folder_in_which_a_build_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` looks there first."""
    (tmp_path / "pip.py").write_text("print('evil')")
    monkeypatch.chdir(tmp_path)
    done = assets._pip(tmp_path, ["--version"])
    assert isinstance(done, Output) and "evil" not in done.text
