"""One Mac of the benchmark of copies, a process in a network namespace of its own: serves its store, fetches on command.

Usage: ``python -m tests.bench.transfers.copymac CONFIG`` with a JSON object: ``node``, ``root``, ``identity``, ``addresses``,
``port``. Commands are lines of JSON on the standard input; each has one line of JSON as its answer.
"""

import asyncio
import json
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from thunderfleet_agent import agent as whole_agent
from thunderfleet_agent.copies.ways.pace import Pace
from thunderfleet_agent.copies.ways.paths import Path as WayTo
from thunderfleet_agent.copies.ways.paths import Way
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.dial_plan import PeerAddress
from thunderfleet_lib.modelstore.manifest import load

from tests.support.models.copies import Mac

PORT = 9440


class Everyone(dict[str, str]):
    """All Macs of the benchmark have one certificate."""

    def __init__(self, sha256: str) -> None:
        super().__init__()
        self._sha256 = sha256

    def get(self, key: str, default: Any = None) -> Any:
        return self._sha256


async def main() -> None:
    """Runs until the end of the standard input."""
    config = json.loads(sys.argv[1])
    made = identity.load(Path(config["identity"]))
    mac = Mac(config["node"], Path(config["root"]), made, tuple(config["addresses"]))
    mac.port = config["port"]
    await mac.start(Everyone(made.sha256))
    for one in mac.store.manifests():
        mac.shelf.prepare(one)
    # The whole agent is imported, so that memory is that of an agent.
    print(json.dumps({"ready": whole_agent.__name__}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        if command["do"] == "lists":
            blobs = [entry.blob for one in mac.store.manifests() for entry in one.files if entry.size > 8 * 2**20]
            answer: dict[str, Any] = {"known": all(mac.shelf.chunk_list(blob) for blob in blobs)}
        elif command["do"] == "usage":
            answer = _usage()
        else:
            answer = await _fetch(mac, command)
        print(json.dumps(answer), flush=True)
    await mac.stop()


def _usage() -> dict[str, Any]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status").read_text()
    highest = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {"cpu": used.ru_utime + used.ru_stime, "system": used.ru_stime, "megabytes": highest / 1024}


async def _fetch(mac: Mac, command: dict[str, Any]) -> dict[str, Any]:
    whole = load(await asyncio.to_thread(Path(command["manifest"]).read_bytes))
    limit = command.get("limit")
    kind = Way.CABLE if limit is None else Way.USED_CABLE
    ways = [
        WayTo(PeerAddress(way["node"], way["address"], PORT, mac.identity.sha256), kind, way.get("source"), way["address"])
        for way in command["ways"]
    ]
    transfer = mac.transfer(whole, *ways, paces={Way.USED_CABLE: Pace(limit)})
    before, began = _usage(), time.monotonic()
    done = await asyncio.to_thread(transfer.run)
    seconds, after = time.monotonic() - began, _usage()
    if command.get("forget"):
        shutil.rmtree(mac.store.layout.repository(whole.repository))
        mac.shelf.refresh()
    return {"done": done, "seconds": seconds, "cpu": after["cpu"] - before["cpu"], "megabytes": after["megabytes"]}


if __name__ == "__main__":
    asyncio.run(main())
