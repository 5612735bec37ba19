"""A newer version of Thunderfleet to upgrade to, and a client that asks a model meanwhile."""

import os
import shutil
from pathlib import Path

from thunderfleet_localcluster.client.cluster import Cluster

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
