"""The software bill of materials (CycloneDX 1.6): every Debian and Python package of the image."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from email import message_from_bytes

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from thunderfleet_image.lock import Package
from thunderfleet_image.recipe import MADE, SITE_PACKAGES, SUITE, Platform
from thunderfleet_image.tree import Tree

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "thunderfleet.io")


def bill(platform: Platform, version: str, debian: Iterable[Package], tree: Tree) -> bytes:
    """The bill as JSON, always with the same bytes for the same packages."""
    root = Component(type=ComponentType.CONTAINER, name="thunderfleet", version=version, bom_ref="thunderfleet")
    parts = [*(_debian(package) for package in sorted(debian)), *_python(tree)]
    seed = " ".join([platform.name, version, *(str(part.purl) for part in parts)])
    bom = Bom(components=parts, serial_number=uuid.uuid5(NAMESPACE, seed))
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.fromtimestamp(MADE, UTC)
    bom.register_dependency(root, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2).encode() + b"\n"


def _debian(package: Package) -> Component:
    purl = PackageURL("deb", "debian", package.name, package.version, {"arch": package.architecture, "distro": SUITE})
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)]
    return _component(purl, hashes)


def _python(tree: Tree) -> list[Component]:
    found = []
    for path, entry in sorted(tree.items()):
        if path.startswith(SITE_PACKAGES) and path.endswith(".dist-info/METADATA"):
            metadata = message_from_bytes(entry.content)
            name = str(metadata["Name"]).lower().replace("_", "-").replace(".", "-")
            found.append(_component(PackageURL("pypi", None, name, str(metadata["Version"])), []))
    return found


def _component(purl: PackageURL, hashes: list[HashType]) -> Component:
    name, version = str(purl.name), str(purl.version)
    return Component(type=ComponentType.LIBRARY, name=name, version=version, purl=purl, bom_ref=str(purl), hashes=hashes)
