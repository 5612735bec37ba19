"""aiohttp reads the root certificates of the system when a connection needs them, and then checks with them as before."""

import json
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_lib.net import latecontext, tls
from thunderfleet_lib.net.latecontext import LateContext

# A server with the certificate in argv[1], and a client of aiohttp that trusts what the environment names.
CONNECTS = """
import asyncio, json, os, ssl, sys
import thunderfleet_lib
read = []
real = ssl.SSLContext.set_default_verify_paths
ssl.SSLContext.set_default_verify_paths = lambda context: read.append(real(context))
import aiohttp, aiohttp.connector
from aiohttp import web
ssl.SSLContext.set_default_verify_paths = lambda context: read.append(real(context))
imported = len(read)

async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=sys.argv[1])
    context.load_cert_chain(sys.argv[1])
    runner = web.AppRunner(web.Application(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    answers = []
    for checked in (True, True, False):
        try:
            async with aiohttp.ClientSession() as client, client.get(f"https://127.0.0.1:{port}/", ssl=checked) as answer:
                answers.append(answer.status)
        except aiohttp.ClientConnectorCertificateError:
            answers.append("refused")
    await runner.cleanup()
    return answers

print(json.dumps({"imported": imported, "answers": asyncio.run(main()), "read": len(read)}))
"""


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, Path]:
    """Files with a certificate for 127.0.0.1 and its key: two that do not trust each other."""
    now = datetime.now(UTC)
    files = []
    for name in ("one", "other"):
        key, subject = tls.new_key(), tls.subject(name)
        validity = tls.Validity(now - timedelta(days=1), now + timedelta(days=1))
        issuer, usages = tls.Issuer(subject, key), ("digital_signature", "key_cert_sign")
        made = tls.build_certificate(
            *(subject, key.public_key(), issuer, validity), ca=True, key_usages=usages, alternative_names=["127.0.0.1"]
        )
        files.append(tmp_path / f"{name}.pem")
        files[-1].write_bytes(tls.certificate_pem(made) + tls.key_pem(key))
    return files[0], files[1]


def _connects(served: Path, trusted: Path) -> dict[str, Any]:
    roots = {"SSL_CERT_FILE": str(trusted), "SSL_CERT_DIR": str(trusted.parent / "none")}
    environment = {**roots, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", CONNECTS, str(served)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_aiohttp_reads_them_at_the_first_connection_that_needs_them_and_once(pairs: tuple[Path, Path]) -> None:
    one, other = pairs
    assert _connects(one, one) == {"imported": 0, "answers": [404, 404, 404], "read": 2}, "one context checks, one does not"
    assert _connects(one, other) == {"imported": 0, "answers": ["refused", "refused", 404], "read": 2}


def test_contexts_of_other_threads_and_later_ones_are_ready_at_once() -> None:
    made: list[ssl.SSLContext] = []
    other = threading.Thread(target=lambda: made.append(ssl.create_default_context()))

    def work() -> None:
        other.start()
        other.join()
        made.append(ssl.create_default_context())

    latecontext.put_off(work)
    made.append(ssl.create_default_context())
    assert [type(context) for context in made] == [ssl.SSLContext, LateContext, ssl.SSLContext]


def test_contexts_that_exist_when_the_work_fails_still_read_them() -> None:
    made: list[ssl.SSLContext] = []

    def work() -> None:
        made.append(ssl.create_default_context())
        raise OSError

    with pytest.raises(OSError):
        latecontext.put_off(work)
    assert type(made[0]) is LateContext
    made[0].wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert made[0].cert_store_stats() == ssl.create_default_context().cert_store_stats()
