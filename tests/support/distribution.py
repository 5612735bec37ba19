"""CNCF distribution, the registry that most others descend from: built from its Go module, and filled over its API."""

import http.client
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import gomodules

PACKAGE = "github.com/distribution/distribution/v3/cmd/registry"
PUSH_SECONDS = 60.0


def program() -> Path:
    """The registry's program, built once into the cache. Raises AssetsError."""
    return gomodules.program("registry", "registry", PACKAGE)


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
