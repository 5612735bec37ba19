"""Versions of Thunderfleet to upgrade to and from, and a client that sends requests to a model meanwhile."""

import io
import os
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

from thunderfleet_localcluster.client.cluster import Cluster

SECONDS = 60

# Asks a model until a file appears, then writes the number of requests and what went wrong, as JSON.
ASKER = """
import json, os, sys, urllib.request
url, result = sys.argv[1] + "/completions", sys.argv[2]
asked, failed = 0, []
while not os.path.exists(result + ".stop"):
    asked += 1
    body = json.dumps({"model": "nobody/tiny", "prompt": "one", "max_tokens": 4}).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).read()
    except OSError as error:
        failed.append(str(error))
with open(result + ".part", "w") as file:
    json.dump([asked, failed], file)
os.rename(result + ".part", result)
"""


def version_of(cluster: Cluster) -> str:
    """The version in the image of the cluster."""
    (metadata,) = cluster.image_folder.glob("lib/python3*/site-packages/thunderfleet-*.dist-info")
    return metadata.name.removeprefix("thunderfleet-").removesuffix(".dist-info")


def next_version(cluster: Cluster, version: str) -> Path:
    """An installation like the image of the cluster, with another version: what a newer wheel would install."""
    source, target = cluster.image_folder, cluster.folder.root / version
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    (metadata,) = target.glob("lib/python3*/site-packages/thunderfleet-*.dist-info")
    site, own = metadata.parent, version_of(cluster)
    metadata.rename(site / f"thunderfleet-{version}.dist-info")
    changed = [site / f"thunderfleet-{version}.dist-info/METADATA", target / "config.json", *target.glob("bin/thunderfleet*")]
    for path in (*changed, site / "thunderfleet_localcluster/shipped/charts/thunderfleet/Chart.yaml"):
        text, mode = path.read_text(), path.stat().st_mode
        path.unlink()
        path.write_text(text.replace(str(source), str(target)).replace(own, version))
        path.chmod(mode)
    return target


def release_of(cluster: Cluster, commit: str, version: str) -> tuple[Path, Path]:
    """An installation like the image of the cluster with our packages of a commit, and its chart. Needs the history of git."""
    root = Path(__file__).parents[3]
    sources, target = cluster.folder.root / f"sources-{version}", cluster.folder.root / version
    archive = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True, timeout=SECONDS, check=False)
    # A clone without history cannot test an upgrade from it.
    assert archive.returncode == 0, f"{archive.stderr.decode()} (git fetch --unshallow gets the history)"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(sources, filter="data")
    project = tomllib.loads((sources / "pyproject.toml").read_text())
    shutil.copytree(
        cluster.image_folder, target, symlinks=True, copy_function=os.link, ignore=shutil.ignore_patterns("thunderfleet_*")
    )
    (metadata,) = target.glob("lib/python3*/site-packages/thunderfleet-*.dist-info")
    site = metadata.parent
    _rewrite(metadata / "METADATA", version_of(cluster), version)
    metadata.rename(site / f"thunderfleet-{version}.dist-info")
    _rewrite(target / "config.json", str(cluster.image_folder), str(target))
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(sources / package, site / Path(package).name)
    (python,) = {path.name for path in (target / "bin").glob("python3.*[0-9]")}
    for path in (target / "bin").glob("*thunderfleet*"):
        path.unlink()
    for name, place in project["project"]["scripts"].items():
        module, function = place.split(":")
        script = target / "bin" / name
        script.write_text(f"#!{target}/bin/{python}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n")
        script.chmod(0o755)
    return target, sources / "charts" / "thunderfleet"


def _rewrite(path: Path, before: str, after: str) -> None:
    """Changes a text in a file that has other links."""
    text = path.read_text().replace(before, after)
    path.unlink()
    path.write_text(text)
