"""The chart as an artefact: packaged, pushed to a registry over its API, pulled and used from there by the real helm."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import yamltext
from tests.support.images.registry import Registry, digest_of

from .conftest import documents
from .test_values import EVERYTHING

Json = dict[str, Any]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


@pytest.fixture(scope="module")
def package(helm: Helm, chart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``make dist`` packages it."""
    folder = tmp_path_factory.mktemp("package")
    done = helm("package", chart, "-d", folder)
    assert done.returncode == 0, done.stderr
    (found,) = folder.iterdir()
    return found


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    found = await Registry().start()
    yield found
    await found.stop()


def test_the_package_has_every_file_and_nothing_else(package: Path, chart: Path) -> None:
    wanted = {path.relative_to(chart) for path in chart.rglob("*") if path.is_file()}
    with tarfile.open(package) as archive:
        streams = {Path(one.name).relative_to("thunderfleet"): archive.extractfile(one) for one in archive.getmembers()}
        found = {path: stream.read() for path, stream in streams.items() if stream is not None}
    assert package.name == f"thunderfleet-{version_of(chart)}.tgz"
    assert set(found) == wanted
    # helm rewrites Chart.yaml.
    changed = [path.name for path, content in found.items() if content != (chart / path).read_bytes()]
    assert [name for name in changed if name != "Chart.yaml"] == []


APPLIED_BYTES = 262_144
"""Limit of all annotations of an object."""
RELEASE_BYTES = 1_048_576
"""Limit of a Secret."""


def test_objects_and_release_are_within_the_limits_of_the_api_server(helm: Helm, chart: Path, package: Path) -> None:
    """``kubectl apply`` and Argo CD store each object in an annotation, and helm the chart and all objects in one Secret."""
    text = helm("template", "thunderfleet", chart, "--values", EVERYTHING).stdout
    sizes = {(item["kind"], item["metadata"]["name"]): len(json.dumps(item)) for item in documents(text)}
    assert {name: size for name, size in sizes.items() if size > APPLIED_BYTES} == {}
    # helm encodes what it has compressed in base64, and the API server counts that.
    compressed = package.stat().st_size + len(gzip.compress(text.encode()))
    assert compressed * 4 / 3 < RELEASE_BYTES / 2, "half of it is left for values"


def version_of(chart: Path) -> str:
    return str(yamltext.load((chart / "Chart.yaml").read_text())["version"])


def read(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_registry_has_the_chart_and_helm_uses_it_from_there(
    helm: Helm, chart: Path, package: Path, registry: Registry, tmp_path: Path
) -> None:
    async def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(helm, *words, "--plain-http")

    pushed = await run("push", package, f"oci://{registry.host}/charts")
    assert pushed.returncode == 0, pushed.stderr
    version, packed = version_of(chart), read(package)
    _, content = registry.manifests["charts/thunderfleet", version]
    manifest = json.loads(content)
    assert manifest["config"]["mediaType"] == CONFIG
    (layer,) = manifest["layers"]
    assert (layer["mediaType"], registry.blobs[layer["digest"]]) == (CONTENT, packed)
    assert digest_of(content) in pushed.stdout + pushed.stderr

    where = f"oci://{registry.host}/charts/thunderfleet"
    pulled = await run("pull", where, "--version", version, "-d", tmp_path)
    assert pulled.returncode == 0, pulled.stderr
    assert read(tmp_path / package.name) == packed
    for part, file in (("values", "values.yaml"), ("readme", "README.md")):
        shown = await run("show", part, where, "--version", version)
        assert read(chart / file).decode().strip() in shown.stdout
    of_registry = await run("template", "thunderfleet", where, "--version", version)
    of_folder = helm("template", "thunderfleet", chart)
    assert of_registry.returncode == 0, of_registry.stderr
    assert documents(of_registry.stdout) == documents(of_folder.stdout)

    missing = await run("pull", where, "--version", "9.9.9", "-d", tmp_path)
    assert missing.returncode != 0
    registry.lies[layer["digest"]] = packed[:-1] + b"x"
    damaged = await run("pull", where, "--version", version, "-d", tmp_path / "damaged")
    assert damaged.returncode != 0
