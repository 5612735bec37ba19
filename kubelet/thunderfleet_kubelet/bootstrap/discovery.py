"""Finds the API server and its CA: nothing secret is sent before the CA's hash is verified."""

import asyncio
import base64
import contextlib
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from thunderfleet_lib.discovery import ca_hash, choose_ca, shown, unverified

from thunderfleet_kubelet.bootstrap.errors import JoinError, UsageError

TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
HASH = re.compile(r"sha256:[0-9a-f]{64}")
TOKEN_FILE_LIMIT = 1024
CONNECT_SECONDS = 10.0
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@dataclass(frozen=True)
class Server:
    """The address of the API server."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The base URL."""
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_server(text: str) -> Server:
    """Parses ``https://HOST:PORT``. Raises UsageError."""
    try:
        parts = urlsplit(text)
        port = parts.port or 6443
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise UsageError(f"--server {text}: must be https://HOST:PORT, such as https://192.168.64.1:6443")
    return Server(parts.hostname, port)


def read_token(file: Path) -> str:
    """The token in a file. Raises UsageError."""
    try:
        with file.open() as stream:
            return stream.read(TOKEN_FILE_LIMIT).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: cannot be read: {error}") from None


def check_token(text: str) -> str:
    """Returns a well-formed token. Raises UsageError, without the token in the message because it is secret."""
    if not TOKEN.fullmatch(text):
        raise UsageError(
            "--token: must be 6 lower-case letters or digits, a dot, and 16 more, as `thunderfleet local token` or kubeadm "
            "prints it"
        )
    return text


def check_hash(text: str) -> str:
    """Returns a well-formed hash. Raises UsageError."""
    if not HASH.fullmatch(text):
        raise UsageError(
            f"--ca-hash {text}: must be sha256: and 64 lower-case hexadecimal digits, as printed by `thunderfleet local token` "
            "or kubeadm"
        )
    return text


async def _handshake(server: Server) -> list[x509.Certificate]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(server.host, server.port, ssl=unverified())
    except TimeoutError:
        raise JoinError(f"{server.url}: timed out after {CONNECT_SECONDS:g} s; check the address and the network") from None
    except ssl.SSLError as error:
        raise JoinError(f"{server.url}: not a TLS server ({error.reason}); check that this is the API server's port") from None
    except OSError as error:
        why = error.strerror or str(error) or "connection closed; check that it is a TLS server"
        raise JoinError(
            f"{server.url}: cannot connect ({why}); check that the API server is running and that the address is right"
        ) from None
    try:
        return shown(writer.get_extra_info("ssl_object"))
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await writer.wait_closed()


async def _cluster_info(server: Server) -> list[x509.Certificate]:
    """The CA in the public ConfigMap ``cluster-info``, as kubeadm publishes it; empty without one."""
    timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(server.url + CLUSTER_INFO, ssl=unverified()) as answer,
        ):
            if answer.status != 200:
                return []
            document = yaml.safe_load((await answer.json())["data"]["kubeconfig"])
            pem = base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"])
            return x509.load_pem_x509_certificates(pem)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, IndexError, TypeError, yaml.YAMLError):
        return []


async def fetch_ca(server: Server, wanted: str) -> bytes:
    """The cluster's CA (PEM), verified by its hash. Raises JoinError. Sends nothing secret."""
    seen = await _handshake(server)
    found = choose_ca(seen, wanted)
    if found is None:
        published = await _cluster_info(server)
        found = choose_ca(published, wanted)
        if found is None:
            hashes = ", ".join(ca_hash(one) for one in (*published, *seen)) or "none"
            raise JoinError(
                f"{server.url}: no CA with hash {wanted}, found {hashes}; the token was not sent. Use --server and --ca-hash "
                "from one output of `thunderfleet local token` or kubeadm; a wrong hash means another cluster or a man in the "
                "middle"
            )
    return found.public_bytes(serialization.Encoding.PEM)
