"""Snapshots of the etcd that runs on this Mac, and data of an etcd from a snapshot."""

import base64
import hashlib
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import ETCD_CLIENT, ETCD_PEER, LOCAL
from thunderfleet_controlplane.install.errors import InstallError

ANSWER_SECONDS = 60.0
RESTORE_SECONDS = 900.0
LINE_BYTES = 16 << 20
ALIGNED, HASH_BYTES = 512, 32
"""A database has whole blocks; a snapshot has its SHA-256 after it."""
MEMBER = "thunderfleet"
SEE_LOG = "run this again; if it recurs, see /Library/Logs/Thunderfleet/etcd.log"
BUMP = 1_000_000_000
"""Larger than the number of changes since any backup, so that no revision that a client has seen is used again."""


def snapshot(layout: HostLayout) -> Iterator[bytes]:
    """A snapshot of etcd, in the parts in which it arrives. Raises InstallError."""
    pair = layout.pki.pair("etcd-client")
    try:
        context = ssl.create_default_context(cafile=str(layout.pki.folder / "etcd-ca.crt"))
        context.load_cert_chain(pair.certificate, pair.key)
        connection = http.client.HTTPSConnection(LOCAL, ETCD_CLIENT, timeout=ANSWER_SECONDS, context=context)
        try:
            connection.request("POST", "/v3/maintenance/snapshot", "{}", {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                said = answer.read(400).decode(errors="replace")
                raise InstallError(f"etcd refuses a snapshot (status {answer.status}, {said}); {SEE_LOG}")
            yield from verified(_blobs(answer))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InstallError(
            f"cannot get a snapshot of etcd: {error}; if it does not run, `sudo thunderfleet init` starts it"
        ) from error


def _blobs(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The gateway sends each message of the stream as a line of JSON."""
    while line := answer.readline(LINE_BYTES):
        message = json.loads(line)
        if "result" not in message:
            raise InstallError(f"etcd ended its snapshot ({str(message)[:400]}); {SEE_LOG}")
        yield base64.b64decode(message["result"].get("blob", ""))


def verified(blobs: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the parts of a snapshot. Raises InstallError at the end if its hash does not match the data."""
    state, tail, size = hashlib.sha256(), b"", 0
    for blob in blobs:
        yield blob
        size += len(blob)
        known = tail + blob
        state.update(known[:-HASH_BYTES])
        tail = known[-HASH_BYTES:]
    if size % ALIGNED != HASH_BYTES or state.digest() != tail:
        raise InstallError("the snapshot of etcd is not complete; run this again")


def make_data(host: BlockingHost, etcdutl: Path, source: Path, data: Path) -> None:
    """Make the data of an etcd of one member in the folder ``data`` from the snapshot ``source``. Raises InstallError."""
    peer = f"https://{LOCAL}:{ETCD_PEER}"
    said = host.run(
        [
            *(str(etcdutl), "snapshot", "restore", str(source), "--data-dir", str(data), "--name", MEMBER),
            *("--initial-cluster", f"{MEMBER}={peer}", "--initial-advertise-peer-urls", peer),
            # Watches from a revision before the restore get an error and list again, instead of waiting forever.
            *("--bump-revision", str(BUMP), "--mark-compacted"),
        ],
        RESTORE_SECONDS,
    )
    if isinstance(said, Failure):
        why = said.error.strip()[-600:] or said
        raise InstallError(f"cannot restore etcd's data from the snapshot: {why}; free some space, or use another backup")
