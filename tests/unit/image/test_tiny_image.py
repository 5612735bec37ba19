"""An image of tiny packages, built by the real dpkg-deb and pip and read as a container runtime reads it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_image import layout, mac, packages
from thunderfleet_image.build import LOCK, SBOM, contents, image, mac_contents
from thunderfleet_image.build import build as build_image
from thunderfleet_image.errors import ImageError
from thunderfleet_image.recipe import MAC, MADE, PLATFORMS, SITE_PACKAGES, USER, Platform

from tests.support.images import oci
from tests.unit.image.conftest import SECONDS, Tiny, make_tiny, make_wheel

Json = dict[str, Any]


def build(tiny: Tiny, folder: Path) -> str:
    layers = {one: contents(tiny.checkout, one, tiny.debs, tiny.wheel, "1.0") for one in PLATFORMS}
    layers[MAC] = [mac_contents(tiny.checkout, tiny.wheel)]
    images = [image(platform, found, "1.0", "abc", "2020-02-02T00:00:00Z") for platform, found in layers.items()]
    return layout.write(folder, images, "1.0")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Built:
    """A tiny checkout, its image, and the digest of that."""

    tiny: Tiny
    folder: Path
    digest: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An image that tests only read: pip takes seconds for each platform. It was built with a strict umask."""
    folder = tmp_path_factory.mktemp("built")
    tiny = make_tiny(folder)
    before = os.umask(0o077)
    try:
        return Built(tiny, folder / "image", build(tiny, folder / "image"))
    finally:
        os.umask(before)


def test_two_builds_have_the_same_bytes_and_a_runtime_can_read_them(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = built.folder, tmp_path / "second"
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    assert build(built.tiny, second) == built.digest
    assert files(first) == files(second)

    found = oci.manifests(first)
    assert set(found) == {"amd64", "arm64"}
    for architecture, manifest in found.items():
        config = oci.configuration(first, manifest)
        assert (config["os"], config["architecture"]) == ("linux", architecture)
        assert config["config"]["User"] == f"{USER}:{USER}"
        members = [member for layer in manifest["layers"] for member in oci.members(first, layer)]
        assert {member.mtime for member in members} == {MADE}
        assert not [member.name for member in members if member.mode & 0o6000], "nothing may gain rights"
        owned = {member.name for member in members if (member.uid, member.gid) != (0, 0)}
        assert owned == {"home/thunderfleet"}
    assert found["amd64"]["layers"][0] == found["arm64"]["layers"][0], "packages for all architectures are shared"


def test_the_file_system_is_what_the_recipe_says(built: Built, tmp_path: Path) -> None:
    root = tmp_path / "root"
    oci.unpack(built.folder, oci.manifests(built.folder)["arm64"], root)
    assert (root / "usr/bin/same").read_bytes() == b"program"
    assert (root / "lib").readlink() == Path("usr/lib")
    assert (root / "etc/ssl/certs/ca-certificates.crt").read_bytes() == b"A\nB\n"
    assert not (root / "usr/share/man").exists()
    assert [path.name for path in (root / "usr/share/doc/base").iterdir()] == ["copyright"]
    assert "Package: base" in (root / "var/lib/dpkg/status.d/base").read_text()
    assert (root / SITE_PACKAGES / "fast_part/it.so").read_text() == "aarch64"
    record = (root / SITE_PACKAGES / "pure-1.0.dist-info/RECORD").read_text()
    assert "pure.py" in record
    assert "bin/" not in record, "the script names the Python of this machine"
    assert (root / "usr/bin/thunderfleet-operator").read_text().startswith("#!/usr/bin/python3.13\n")
    assert os.access(root / "usr/bin/thunderfleet-operator", os.X_OK)
    assert (root / "usr/bin/python3").readlink() == Path("python3.13")


def test_the_image_for_macs_has_our_packages_and_scripts_that_start_the_python_of_the_mac(built: Built, tmp_path: Path) -> None:
    (manifest,) = oci.manifests(built.folder, "darwin").values()
    config = oci.configuration(built.folder, manifest)
    assert (config["os"], config["architecture"]) == ("darwin", "arm64")
    root = tmp_path / "root"
    oci.unpack(built.folder, manifest, root)
    assert sorted(path.name for path in (root / "bin").iterdir()) == sorted(mac.PROGRAMS)
    assert {path.name for path in (root / "packages").iterdir()} == {"thunderfleet_operator", "thunderfleet-1.0.dist-info"}
    text = (root / "bin/thunderfleet-operator").read_text()
    assert f"exec {mac.PYTHON} " in text and "from thunderfleet_operator.cli import main" in text
    assert {member.mtime for layer in manifest["layers"] for member in oci.members(built.folder, layer)} == {MADE}


def test_an_image_for_macs_alone_needs_no_packages_of_debian(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ours(checkout: Path, folder: Path) -> Path:
        return Path(shutil.copy(tiny.wheel, folder))

    monkeypatch.setattr(packages, "build_wheel", ours)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    (tiny.checkout / LOCK).touch()
    build_image(tiny.checkout, tmp_path / "cache", tmp_path / "out", [MAC], "abc", MADE, "/opt/python")
    assert oci.manifests(tmp_path / "out") == {}
    (manifest,) = oci.manifests(tmp_path / "out", "darwin").values()
    oci.unpack(tmp_path / "out", manifest, tmp_path / "root")
    assert "exec /opt/python " in (tmp_path / "root/bin/thunderfleet-agent").read_text()


def test_a_script_of_a_mac_runs_our_packages_in_the_image_with_the_python_of_the_mac(tmp_path: Path) -> None:
    says = "import sys\n\ndef main():\n    print(__file__, *sys.argv[1:])\n    return 7\n"
    wheel = make_wheel(tmp_path / "ours", "thunderfleet", "py3-none-any", {"thunderfleet_operator/cli.py": says})
    (tmp_path / "LICENSE").touch()
    # Not that of the tests, which finds the checkout before all other folders.
    python: str = vars(sys)["_base_executable"]
    found = image(MAC, [mac_contents(tmp_path, wheel, python)], "1.0", "", "2020-02-02T00:00:00Z")
    layout.write(tmp_path / "image", [found], "1.0")
    (manifest,) = oci.manifests(tmp_path / "image", "darwin").values()
    root = tmp_path / "root"
    oci.unpack(tmp_path / "image", manifest, root)
    command = [str(root / "bin/thunderfleet-operator"), "run", "a b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd="/")
    program, _, words = done.stdout.partition(" ")
    assert Path(program).resolve() == (root / "packages/thunderfleet_operator/cli.py").resolve(), done.stderr
    assert (done.returncode, words, done.stderr) == (7, "run a b\n", "")


def test_the_bill_names_every_package(tiny: Tiny, arm: Platform) -> None:
    bill = json.loads(contents(tiny.checkout, arm, tiny.debs, tiny.wheel, "1.0")[-1][SBOM].content)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {part["purl"] for part in bill["components"]} == {
        "pkg:deb/debian/base@1-1?arch=all&distro=trixie",
        "pkg:deb/debian/ca-certificates@1-1?arch=all&distro=trixie",
        "pkg:pypi/fast-part@1.0",
        "pkg:pypi/pure@1.0",
        "pkg:pypi/thunderfleet@1.0",
    }
    (root,) = [one for one in bill["dependencies"] if one["ref"] == "thunderfleet"]
    assert len(root["dependsOn"]) == 5


def test_a_wheel_with_another_hash_is_refused(tiny: Tiny, arm: Platform) -> None:
    pins = tiny.checkout / "image" / "requirements.txt"
    pins.write_text(pins.read_text().replace("--hash=sha256:", "--hash=sha256:0000", 3)[: -len("\n")])
    text = pins.read_text()
    pins.write_text("\n".join(line.replace("0000", "", 1) if "fast" in line else line for line in text.splitlines()))
    with pytest.raises(ImageError, match=r"(?i)hash"):
        contents(tiny.checkout, arm, tiny.debs, tiny.wheel, "1.0")


def test_a_package_without_a_wheel_for_the_platform_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ImageError, match="fast-part"):
        contents(tiny.checkout, Platform("riscv64", "riscv64"), tiny.debs, tiny.wheel, "1.0")


def test_a_damaged_debian_package_is_refused(tiny: Tiny, arm: Platform) -> None:
    deb = next(iter(tiny.debs.values()))
    deb.write_bytes(deb.read_bytes()[:100])
    with pytest.raises(ImageError, match="dpkg-deb"):
        contents(tiny.checkout, arm, tiny.debs, tiny.wheel, "1.0")
