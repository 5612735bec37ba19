"""CNCF distribution, the registry that most others descend from: built from its Go module, and filled over its API."""

import http.client
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from thunderfleet_localcluster.client.cluster import ClusterMachine

from tests.support.otherprojects import gomodules
from tests.support.waiting import until

PACKAGE = "github.com/distribution/distribution/v3/cmd/registry"
PUSH_SECONDS = 60.0


def program() -> Path:
    """The registry's program, built once into the cache. Raises AssetsError."""
    return gomodules.program("registry", "registry", PACKAGE)


def start(machine: ClusterMachine, images: Path, host: str) -> Path:
    """Starts the registry on a machine and pushes what ``registry.save`` has written to ``images``. Returns its log.

    ``host``: an address of the machine and a port. Its process id is in ``distribution.pid`` in the machine's folder; it ends
    with the machine.
    """
    content, output, file = (machine.folder / f"distribution{end}" for end in ("", ".log", ".yaml"))
    file.write_text(f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {content}}}}}\nhttp: {{addr: '{host}'}}\n")
    # It sends traces to this machine's port 4318 otherwise.
    command = f"OTEL_TRACES_EXPORTER=none exec {shlex.join([str(program()), 'serve', str(file)])}"
    machine.run(["sh", "-c", f"({command}) >{output} 2>&1 & echo $! >{machine.folder}/distribution.pid"])
    where = f"cd {shlex.quote(str(Path(__file__).parents[3]))}"
    pushing = shlex.join([sys.executable, "-m", "tests.support.images.distribution", str(images), host])

    def pushed() -> bool:
        return machine.run(["sh", "-c", f"{where}; {pushing}"], seconds=PUSH_SECONDS).returncode == 0

    until(pushed, "the registry has the images", PUSH_SECONDS, describe=output.read_text)
    return output


def push(folder: Path, host: str) -> None:
    """Pushes what ``registry.save`` has written to ``folder``. Raises OSError."""
    found = json.loads((folder / "manifests.json").read_text())["manifests"]
    connection = http.client.HTTPConnection(host, timeout=PUSH_SECONDS)

    def send(method: str, path: str, content: bytes | None, headers: Mapping[str, str], wanted: int) -> str:
        connection.request(method, path, content, dict(headers))
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != wanted:
            raise OSError(f"{method} {path}: {answer.status} {said.decode(errors='replace')}")
        return answer.headers.get("Location", "")

    for repository in {one[0] for one in found}:
        for blob in (folder / "blobs").iterdir():
            where = urlsplit(send("POST", f"/v2/{repository}/blobs/uploads/", b"", {}, 202))
            path = f"{where.path}?{where.query}&digest={blob.name}"
            send("PUT", path, blob.read_bytes(), {"Content-Type": "application/octet-stream"}, 201)
    # Images before the indexes that name them.
    for repository, target, media, content in sorted(found, key=lambda one: "index" in one[2]):
        send("PUT", f"/v2/{repository}/manifests/{target}", content.encode(), {"Content-Type": media}, 201)
    connection.close()


if __name__ == "__main__":
    push(Path(sys.argv[1]), sys.argv[2])
