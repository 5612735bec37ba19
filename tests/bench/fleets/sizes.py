"""Sizes of what the chart installs, compared with the limits of Kubernetes."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.figures import Bound, Figure
from tests.bench.line import NAMESPACE, Line
from tests.support import yamltext

CHART = Path(__file__).resolve().parents[3] / "charts" / "thunderfleet"
KILOBYTE = 1000
ANNOTATIONS = 262_144 / KILOBYTE
"""``kubectl apply`` stores an object in an annotation; all annotations of an object together may have so many kB."""
SECRET = 1_048_576 / KILOBYTE
"""helm stores the chart and all its objects in one Secret."""


def run(line: Line, repeats: int, say: Callable[[str], None]) -> list[Figure]:
    """In kB: the package, all objects, the largest CRD and object, and helm's Secret about the release."""
    with TemporaryDirectory() as folder:
        line.cluster.helm("package", str(CHART), "-d", folder)
        (package,) = Path(folder).iterdir()
        packed = package.stat().st_size / KILOBYTE
    text = line.cluster.helm("get", "manifest", "thunderfleet", "-n", NAMESPACE).stdout
    objects = [item for item in yamltext.load_all(text) if item]
    sizes = {f"{item['kind']} {item['metadata']['name']}": len(json.dumps(item)) / KILOBYTE for item in objects}
    crds = {name: size for name, size in sizes.items() if name.startswith("CustomResourceDefinition")}
    largest, crd = max(sizes, key=sizes.__getitem__), max(crds, key=crds.__getitem__)
    listed = line.cluster.kubectl("get", "secrets", "-n", NAMESPACE, "-l", "owner=helm", "-o", "json").stdout
    release = max(len(item["data"]["release"]) * 3 / 4 / KILOBYTE for item in json.loads(listed)["items"])
    say(f"sizes: package {packed:.0f} kB, {len(objects)} objects of {len(text) / KILOBYTE:.0f} kB, release {release:.0f} kB")
    compressed = len(gzip.compress(text.encode())) / KILOBYTE
    return [
        Figure("chart package", "kB", (packed,)),
        Figure(
            "chart objects",
            "kB",
            (len(text) / KILOBYTE,),
            note=f"{len(objects)} objects as YAML; compressed {compressed:.0f} kB",
        ),
        Figure("largest object", "kB", (sizes[largest],), bound=Bound("<=", ANNOTATIONS), note=f"{largest}, as JSON"),
        Figure("largest CRD", "kB", (sizes[crd],), bound=Bound("<=", ANNOTATIONS), note=f"{crd}, as JSON"),
        Figure("release", "kB", (release,), bound=Bound("<=", SECRET), note="helm's Secret about the chart and its objects"),
    ]
