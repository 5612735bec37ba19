"""What the image is made of: pins, hashes, and the packages that operator and router import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from thunderfleet_image import mac
from thunderfleet_image.apt import Apt, chosen
from thunderfleet_image.build import LOCK, build, pinned_packages
from thunderfleet_image.errors import ImageError
from thunderfleet_image.lock import Package, read, written
from thunderfleet_image.recipe import PLATFORMS, PROGRAMS
from thunderfleet_image.tree import archive, directory, file, link, with_parents

ROOT = Path(__file__).parents[3]
SECONDS = 120
HASH = "0" * 64
IMPORTS = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
for name in ("thunderfleet_operator", "thunderfleet_router"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
# Not namespaces that several packages share: they have no file.
found = {name.partition(".")[0] for name in set(sys.modules) - before if getattr(sys.modules[name], "__file__", None)}
print(json.dumps(sorted(found - set(sys.stdlib_module_names))))
"""


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", path.read_text(), re.MULTILINE))


def test_the_image_has_what_its_programs_import_in_the_tested_versions() -> None:
    image = pins(ROOT / "image" / "requirements.txt")
    everything = pins(ROOT / "requirements.txt")
    # tzdata is for systems without time zones, which requirements.txt names for Windows only.
    assert {name: version for name, version in image.items() if everything.get(name, version) != version} == {}
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=SECONDS, check=True)
    owners = packages_distributions()
    imported = {name.lower() for module in json.loads(done.stdout) for name in owners.get(module, ())}
    # urllib3 imports backports-zstd where it is installed; it is for the kubelet, which unpacks images.
    needed = {re.sub(r"[._]+", "-", name) for name in imported} - {"thunderfleet", "setuptools", "backports-zstd"}
    assert "kopf" in needed
    assert needed - image.keys() == set()
    assert not {"mlx", "mlx-lm", "transformers", "numpy"} & image.keys()


def test_every_program_of_the_image_is_a_script_of_the_wheel() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for name, target in (PROGRAMS | mac.PROGRAMS).items():
        assert f'{name} = "{target}"' in text


def test_the_lock_has_every_package_of_every_platform() -> None:
    found = read((ROOT / LOCK).read_text())
    assert pinned_packages(found, PLATFORMS) == found
    assert read(written(found)) == sorted(found)
    arm = pinned_packages(found, PLATFORMS[1:])
    assert {package.architecture for package in arm} == {"arm64", "all"}
    with pytest.raises(ImageError, match="make image-lock"):
        pinned_packages(found[1:], PLATFORMS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("amd64 libc6 1\n", "line 1: expected architecture, package, version and SHA-256"),
        (f"# comment\n\namd64 libc6 1 {HASH[1:]}\n", "line 3: expected"),
        (f"amd64 libc6 1 {HASH}\namd64 libc6 2 {HASH}\n", "line 2: libc6 of amd64 is listed twice"),
    ],
)
def test_a_bad_lock_is_refused(text: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read(text)


def test_the_mirror_is_that_of_the_machine() -> None:
    used = (
        "Debian-Security|http://one.example/security/\nDebian|http://one.example/debian/\nDebian|http://two.example/debian/\n"
    )
    assert chosen(used) == ("http://one.example/debian", "http://one.example/security")
    for bad in ("", "|http://one.example/debian/\n", "Ubuntu|http://one.example/ubuntu\n"):
        with pytest.raises(ImageError, match="make image DEBIAN_MIRROR=URL"):
            chosen(bad)


@pytest.fixture
def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get that downloads a file with the content of the folder's ``offered``."""
    program = tmp_path / "bin" / "apt-get"
    program.parent.mkdir()
    offered = tmp_path / "offered"
    program.write_text(f'#!/bin/sh\nif [ "$1" = download ]; then cp {offered} ./package.deb; fi\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("DEBIAN_MIRROR", "http://mirror.example/debian")
    monkeypatch.setattr("thunderfleet_image.apt.KEYRING", program)
    return offered


def test_a_package_with_another_hash_is_refused_and_not_kept(fake_apt: Path, tmp_path: Path) -> None:
    apt, store = Apt(tmp_path / "apt", ["amd64"]), tmp_path / "store"
    package = Package("amd64", "libc6", "1", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
    fake_apt.write_bytes(b"other")
    with pytest.raises(ImageError, match=r"does not have the hash in image/debian\.lock"):
        apt.download([package], store)
    assert list(store.iterdir()) == []
    fake_apt.write_bytes(b"hello")
    (store / f"{package.sha256}.deb").write_bytes(b"a damaged cache")
    (path,) = apt.download([package], store).values()
    assert path.read_bytes() == b"hello"
    fake_apt.unlink()
    assert apt.download([package], store) == {package: path}, "from the cache, without the mirror"


def test_a_version_that_is_gone_names_the_command_that_helps(fake_apt: Path, tmp_path: Path) -> None:
    package = Package("amd64", "libc6", "1", HASH)
    with pytest.raises(ImageError, match="run `make image-lock` and commit"):
        Apt(tmp_path / "apt", ["amd64"]).download([package], tmp_path / "store")


def test_another_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ImageError, match="is not empty and not an image layout"):
        build(ROOT, tmp_path / "cache", tmp_path, PLATFORMS, "", 0)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_layer_has_the_directories_that_lead_to_its_files() -> None:
    below = {"tmp": directory(0o1777), "lib": link("usr/lib")}
    assert with_parents({"tmp/a": file(b"")}, below) == {"tmp": directory(0o1777), "tmp/a": file(b"")}
    with pytest.raises(ValueError, match="is below 'lib', which is no directory"):
        with_parents({"lib/a": file(b"")}, below)
    for bad in ("/etc/a", "../a", "a/../../b", ""):
        with pytest.raises(ValueError, match="is not a path below the root"):
            with_parents({bad: file(b"")}, {})


def test_the_order_of_a_tree_changes_no_byte() -> None:
    tree = {"b": file(b"b"), "a": directory(), "a/long" + "x" * 200: link("b")}
    assert archive(tree, 5) == archive(dict(reversed(tree.items())), 5)
