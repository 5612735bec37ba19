"""From packages and wheels to a folder with the image."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_image import debian, layout, lock, mac, packages, sbom
from thunderfleet_image.apt import Apt
from thunderfleet_image.errors import ImageError
from thunderfleet_image.lock import Package
from thunderfleet_image.recipe import DEBIAN, MAC, MADE, PLATFORMS, Platform, accounts, configuration, programs
from thunderfleet_image.tree import Tree, archive, compressed, file, with_parents

LOCK = Path("image") / "debian.lock"
REQUIREMENTS = Path("image") / "requirements.txt"
SBOM = "usr/share/doc/thunderfleet/sbom.cdx.json"
LICENSE = "usr/share/doc/thunderfleet/copyright"


def update_lock(checkout: Path, cache: Path) -> int:
    """Writes Debian's current versions into the lock; returns the number of packages."""
    apt = Apt(cache / "apt", [platform.architecture for platform in PLATFORMS])
    apt.update()
    found = {apt.offered(name, platform.architecture) for platform in PLATFORMS for name in DEBIAN}
    (checkout / LOCK).write_text(lock.written(found))
    return len(found)


def build(
    checkout: Path,
    cache: Path,
    out: Path,
    chosen: Sequence[Platform],
    revision: str,
    created: int,
    mac_python: str = mac.PYTHON,
) -> str:
    """Writes the image into ``out`` as an OCI image layout and replaces an earlier one; returns the digest of its index.

    Args:
        created: creation time of the image, in seconds since the Unix epoch.
        mac_python: the path of Python on Macs.

    Raises:
        ImageError: a package is missing or has another hash, or ``out`` is not an image layout.
    """
    if out.exists() and any(out.iterdir()) and not (out / "oci-layout").exists():
        raise ImageError(f"{out} is not empty and not an image layout: name another folder, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not (checkout / LOCK).exists():
        raise ImageError(f"{checkout / LOCK} is missing: run this in a checkout of the repository")
    with tempfile.TemporaryDirectory(prefix=".image-", dir=out.parent) as temporary:
        work = Path(temporary)
        (work / "wheel").mkdir()
        wheel = packages.build_wheel(checkout, work / "wheel")
        debs = _debian(checkout, cache, [platform for platform in chosen if platform != MAC])
        images, version = [], wheel.name.split("-")[1]
        when = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for platform in chosen:
            if platform == MAC:
                layers = [mac_contents(checkout, wheel, mac_python)]
            else:
                here = {one: path for one, path in debs.items() if one.architecture in (platform.architecture, lock.ALL)}
                layers = contents(checkout, platform, here, wheel, version)
            images.append(image(platform, layers, version, revision, when))
        made = layout.write(work / "image", images, version)
        shutil.rmtree(out, ignore_errors=True)
        (work / "image").rename(out)
    return made


def image(platform: Platform, layers: Sequence[Tree], version: str, revision: str, created: str) -> layout.Image:
    """The image of these layers, lowest first. ``created``: RFC 3339 time."""
    archives = [archive(layer, MADE) for layer in layers]
    ids = [layout.digest(content) for content in archives]
    if platform == MAC:
        config = mac.configuration(version, revision, created, ids)
    else:
        config = configuration(platform, version, revision, created, ids)
    return layout.Image(platform, config, tuple(compressed(content) for content in archives))


def _debian(checkout: Path, cache: Path, chosen: Sequence[Platform]) -> dict[Package, Path]:
    """Debian's packages for these platforms. Raises ImageError."""
    if not chosen:
        return {}
    pinned = pinned_packages(lock.read((checkout / LOCK).read_text()), chosen)
    return Apt(cache / "apt", [platform.architecture for platform in PLATFORMS]).download(pinned, cache / "debian")


def mac_contents(checkout: Path, wheel: Path, python: str = mac.PYTHON) -> Tree:
    """The layer of the image for Macs."""
    return with_parents(mac.contents(packages.ours(wheel), (checkout / "LICENSE").read_bytes(), python), {})


def pinned_packages(found: list[Package], chosen: Sequence[Platform]) -> list[Package]:
    """The packages of the recipe for the chosen platforms.

    Raises:
        ImageError: the lock has another list of packages.
    """
    wanted = {(platform.architecture, name) for platform in PLATFORMS for name in DEBIAN}
    names = {
        (platform.architecture, package.name)
        for package in found
        for platform in PLATFORMS
        if package.architecture in (platform.architecture, lock.ALL)
    }
    if names != wanted:
        raise ImageError("image/debian.lock has other packages than image/thunderfleet_image/recipe.py: run `make image-lock`")
    architectures = {platform.architecture for platform in chosen} | {lock.ALL}
    return [package for package in found if package.architecture in architectures]


def contents(checkout: Path, platform: Platform, debs: dict[Package, Path], wheel: Path, version: str) -> list[Tree]:
    """The layers, lowest first: Debian's Python, packages of PyPI, our own package. Frequently changed layers are on top."""
    base: Tree = {}
    for package, path in sorted(debs.items()):
        base.update(debian.contents(path, package.name))
    base.update(accounts(debian.bundle(base)))
    python = packages.installed(platform, checkout / REQUIREMENTS)
    own = packages.ours(wheel) | programs()
    own[LICENSE] = file((checkout / "LICENSE").read_bytes())
    own[SBOM] = file(sbom.bill(platform, version, debs, python | own))
    layers: list[Tree] = []
    below: Tree = {}
    for tree in (base, python, own):
        layers.append(with_parents(tree, below))
        below = below | layers[-1]
    return layers
