"""What a TLS connection takes of memory, and that large messages arrive through small buffers."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc
from asyncio import StreamReader, StreamWriter, sslproto
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from thunderfleet_lib.net import tls
from thunderfleet_lib.net.tlsbuffers import RECORD_BYTES, small_buffers

CONNECTIONS = 16
MESSAGE = bytes(range(256)) * 4096


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of a client that trusts it."""
    key, name, now = Ed25519PrivateKey.generate(), tls.subject("server"), datetime.now(UTC)
    certificate = tls.build_certificate(
        name, key.public_key(), tls.Issuer(name, key), tls.Validity(now - timedelta(hours=1), now + timedelta(hours=1)),
        ca=True, alternative_names=("server",),
    )  # fmt: skip
    (tmp_path / "c").write_bytes(tls.certificate_pem(certificate))
    (tmp_path / "k").write_bytes(tls.key_pem(key))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "c", tmp_path / "k")
    return server, ssl.create_default_context(cafile=str(tmp_path / "c"))


async def _echo(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(await reader.readexactly(len(MESSAGE)))
    await writer.drain()
    await reader.read()
    writer.close()


async def test_many_tls_connections_keep_a_record_each_and_carry_large_messages(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it is restored for the tests that follow in this process.
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)
    small_buffers()
    server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=contexts[0])
    port = server.sockets[0].getsockname()[1]
    tracemalloc.start()
    writers: list[StreamWriter] = []
    try:
        async with asyncio.timeout(60):
            for _ in range(CONNECTIONS):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=contexts[1], server_hostname="server")
                writers.append(writer)
                writer.write(MESSAGE)
                assert await reader.readexactly(len(MESSAGE)) == MESSAGE
        kept = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(True, sslproto.__file__),))
        # Both ends are in this process.
        each = sum(one.size for one in kept.statistics("filename")) / (2 * CONNECTIONS)
        assert RECORD_BYTES <= each < 2 * RECORD_BYTES, "asyncio's buffers are measured, and are as small as they were made"
    finally:
        tracemalloc.stop()
        for writer in writers:
            writer.close()
        server.close()
        await server.wait_closed()
