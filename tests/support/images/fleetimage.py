"""Images of Thunderfleet for Macs as docs/images.md describes them: our packages, and scripts that start a Mac's own Python."""

import compileall
import json
import py_compile
import shutil
import sys
import tempfile
from pathlib import Path

from thunderfleet_image import mac

from tests.support.images.registry import Entry, Layer, Registry, folder

PACKAGES = ("crds", "lib", "view", "operator", "agent", "runner", "router")


def _code(installation: Path) -> Layer:
    """Our packages, compiled, because containers write no bytecode, and the scripts."""
    (site,) = installation.glob("lib/python3*/site-packages")
    python = installation / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    entries = [folder("packages"), folder("bin")]
    with tempfile.TemporaryDirectory() as scratch:
        for name in PACKAGES:
            shutil.copytree(site / f"thunderfleet_{name}", Path(scratch, f"thunderfleet_{name}"))
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        assert compileall.compile_dir(scratch, quiet=1, force=True, stripdir=scratch, invalidation_mode=unchecked)
        for path in sorted(Path(scratch).rglob("*")):
            name = f"packages/{path.relative_to(scratch)}"
            entries.append(folder(name) if path.is_dir() else Entry(name, path.read_bytes()))
    # Those of `make image`.
    entries += [Entry(path, script.content, mode=script.mode) for path, script in mac.scripts(str(python)).items()]
    return Layer.of(*entries)


def put(registry: Registry, repository: str, installation: Path, versions: dict[str, str]) -> dict[str, str]:
    """Puts images that run on machines with ``installation``: tags and versions. Returns the digest of each tag.

    They differ in a layer of some hundred bytes.
    """
    code, config = _code(installation), json.loads((installation / "config.json").read_text())
    digests = {}
    for tag, version in versions.items():
        about = f"Metadata-Version: 2.1\nName: thunderfleet\nVersion: {version}\n".encode()
        layer = Layer.of(Entry(f"packages/thunderfleet-{version}.dist-info/METADATA", about))
        digests[tag] = registry.put(repository, tag, registry.image(code, layer, config=config))
    return digests
