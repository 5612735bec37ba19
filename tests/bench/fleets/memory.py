"""Memory of all that the operator keeps of a fleet, in a process of its own that receives the objects as text.

``python -m tests.bench.fleets.memory`` measures this alone.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.proofs import TRUSTING
from thunderfleet_operator.watch.cache import CACHED, PODS, Cache

from tests.bench.figures import Bound, Figure, table
from tests.bench.planner.placement import objects
from tests.bench.processes import usage

MACS = 10_000
PODS_A_MAC = 4


def _lines() -> Iterator[str]:
    """The objects of the fleet, as the API server sends them."""
    for collection, item in objects(MACS):
        yield json.dumps([collection.name, item])
    for i in range(PODS_A_MAC * MACS):
        container = {"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}
        meta = {"name": f"pod-{i}", "namespace": "kube-system", "uid": f"uid-pod-{i}", "resourceVersion": "1"}
        pod = {"metadata": meta, "spec": {"nodeName": f"mac-{i % MACS:05d}", "containers": [container]}, "status": {}}
        yield json.dumps([PODS.name, pod])


def _resident() -> float:
    """MB of this process."""
    gc.collect()
    found = usage(os.getpid())
    if found is None:
        raise RuntimeError("memory is read from /proc, which this machine does not have")
    return found.rss / 1e6


def keep(file: Path) -> dict[str, float]:
    """Reads the objects and makes everything that a round needs of them: megabytes and seconds."""
    collections = {collection.name: collection for collection in CACHED}
    empty, cache = _resident(), Cache()
    with file.open() as lines:
        for line in lines:
            name, item = json.loads(line)
            cache[collections[name]].put(item)
    packed, began = _resident(), time.process_time()
    index = Index(cache, lambda: TRUSTING)
    assert index.nodes and index.profiles and index.links and index.taken
    values, read = time.process_time() - began, _resident()
    began = time.process_time()
    assert index.fleet.parts(lan=False)
    seconds = time.process_time() - began
    return {"empty": empty, "packed": packed, "read": read, "all": _resident(), "values": values, "fleet": seconds}


def figures() -> list[Figure]:
    """Memory, and what it takes to make the snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "objects.jsonl"
        with file.open("w") as lines:
            lines.writelines(f"{line}\n" for line in _lines())
        command = [sys.executable, "-m", "tests.bench.fleets.memory", str(file)]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    about = f"{MACS} Macs, {PODS_A_MAC} pods each"
    parts = f"{found['empty']:.0f} empty, {found['packed']:.0f} with the objects, {found['read']:.0f} with their values"
    return [
        Figure("objects memory", "MB", (found["all"],), bound=Bound("<=", 400), note=f"RSS of a process, {about}; {parts}"),
        Figure("objects as values", "s", (found["values"],), note=f"{about}; before the first round, in parts"),
        Figure("fleet made", "s", (found["fleet"],), bound=Bound("<=", 3), note=about),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(keep(Path(sys.argv[1])), sys.stdout)
    else:
        print(table(figures()))
