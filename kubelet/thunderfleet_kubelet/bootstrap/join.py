"""Joining: from a token and a hash to an identity of one's own, with nothing secret sent before the server is known.

Order matters here. The server's CA is compared with the hash that the cluster's owner handed over; only then does the token go
out; only with the certificate in hand can be asked whether the Node's name is taken (a token may not read Nodes); only after
that is anything written.
"""

import asyncio
import base64
import contextlib
import json
import logging
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from thunderfleet_lib import tls
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_lib.tls import write_private

from thunderfleet_kubelet.bootstrap.certificates import (
    CLIENT_SIGNER,
    Pair,
    obtain,
    read_pair,
    usable,
)

log = logging.getLogger(__name__)

TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
HASH = re.compile(r"sha256:[0-9a-f]{64}")
CONNECT_SECONDS = 10.0
CERTIFICATE_SECONDS = 120.0
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


class JoinError(Exception):
    """Joining is not possible; the message says why and what to do."""


class UsageError(JoinError):
    """What was given on the command line cannot be meant."""


@dataclass(frozen=True)
class Server:
    """Where the API server is."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_server(text: str) -> Server:
    """``https://IP:PORT``; raises UsageError."""
    try:
        parts = urlsplit(text)
        port = parts.port or 6443
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise UsageError(f"--server {text}: must look like https://192.168.64.1:6443")
    return Server(parts.hostname, port)


def check_token(text: str) -> str:
    """The token, if it looks like one; raises UsageError (which does not repeat it: it is a secret)."""
    if not TOKEN.fullmatch(text):
        raise UsageError(
            "--token: must be 6 letters or digits, a dot, and 16 more, lower case, as `thunderfleet token` prints it"
        )
    return text


def check_hash(text: str) -> str:
    """The hash, if it looks like one; raises UsageError."""
    if not HASH.fullmatch(text):
        raise UsageError(f"--ca-hash {text}: must be sha256: and 64 hexadecimal digits, as `thunderfleet token` prints it")
    return text


def ca_hash(certificate: x509.Certificate) -> str:
    """Kubeadm's hash of a CA: SHA-256 of its DER SubjectPublicKeyInfo."""
    return tls.public_key_hash(certificate.public_key())


def choose_ca(candidates: list[x509.Certificate], wanted: str) -> x509.Certificate | None:
    """The CA with hash ``wanted``; None when it is not among them. A leaf with that hash is no CA and does not count."""
    for one in candidates:
        if ca_hash(one) == wanted:
            try:
                constraints = one.extensions.get_extension_for_class(x509.BasicConstraints).value
            except x509.ExtensionNotFound:
                continue
            if constraints.ca:
                return one
    return None


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _chain(connection: Any) -> list[x509.Certificate]:
    """What a server sent in the handshake. Public only since Python 3.13, there all the same before."""
    if hasattr(connection, "get_unverified_chain"):
        chain = connection.get_unverified_chain() or []
    else:
        chain = connection._sslobj.get_unverified_chain() or []
    raw = [one if isinstance(one, bytes) else one.public_bytes(2) for one in chain]  # 2: DER
    return [x509.load_der_x509_certificate(bytes(one)) for one in raw]


async def _handshake(server: Server) -> list[x509.Certificate]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(server.host, server.port, ssl=_unverified())
    except TimeoutError:
        raise JoinError(
            f"{server.url}: no answer within {CONNECT_SECONDS:g} s; is the address right, and reachable from here?"
        ) from None
    except ssl.SSLError as error:
        raise JoinError(f"{server.url}: does not speak TLS ({error.reason}); is this the API server's port?") from None
    except OSError as error:
        why = error.strerror or str(error) or "it broke off; does it speak TLS?"
        raise JoinError(f"{server.url}: cannot be reached ({why}); is the API server up, and the address right?") from None
    try:
        return _chain(writer.get_extra_info("ssl_object"))
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 1.0)


async def _cluster_info(server: Server) -> list[x509.Certificate]:
    """The CA that the cluster publishes to everybody (kubeadm's way); nothing when it publishes none."""
    timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(server.url + CLUSTER_INFO, ssl=_unverified()) as answer,
        ):
            if answer.status != 200:
                return []
            document = yaml.safe_load((await answer.json())["data"]["kubeconfig"])
            pem = base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"])
            return x509.load_pem_x509_certificates(pem)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, IndexError, TypeError, yaml.YAMLError):
        return []


async def fetch_ca(server: Server, wanted: str) -> bytes:
    """The cluster's CA (PEM), believed only because its hash is ``wanted``. Raises JoinError; sends nothing secret."""
    shown = await _handshake(server)
    found = choose_ca(shown, wanted)
    if found is None:
        published = await _cluster_info(server)
        found = choose_ca(published, wanted)
        if found is None:
            shown = [*published, *shown]
            seen = ", ".join(ca_hash(one) for one in shown) or "none"
            raise JoinError(
                f"{server.url}: no CA with the hash {wanted} (it shows {seen}); the token was not sent. Take server and hash "
                "from one `thunderfleet token` line: another hash is another cluster, or somebody in between"
            )
    return found.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Identity:
    """What a node holds once it has joined: everything in ``folder``."""

    folder: Path
    server: str
    node_name: str
    config_file: Path | None

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def client(self) -> Path:
        """Client key and certificate."""
        return self.folder / "client.pem"

    @property
    def serving(self) -> Path:
        """Server key and certificate; not there until the first was signed."""
        return self.folder / "serving.pem"

    def kube(self) -> Kube:
        """A new connection with the credentials that stand on disk now."""
        return Kube.with_files(self.server, self.ca, certificate=self.client, key=self.client)


def identity_folder(root: Path) -> Path:
    return root / "identity"


def load_identity(root: Path) -> Identity | None:
    """Who this kubelet is, from ``root``; None when it has not joined. Raises JoinError when what is there is broken."""
    folder = identity_folder(root)
    file = folder / "cluster.json"
    try:
        known = json.loads(file.read_text())
        config = known.get("configFile")
        return Identity(folder, str(known["server"]), str(known["nodeName"]), Path(config) if config else None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise JoinError(f"{file}: cannot be read ({error}); remove {folder} and join again") from None


def save_identity(root: Path, server: Server, node_name: str, config_file: Path | None, ca: bytes, pair: Pair) -> Identity:
    """Writes everything; ``cluster.json`` last, since it is what says that the rest is there."""
    root.mkdir(parents=True, exist_ok=True)
    folder = identity_folder(root)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    identity = Identity(folder, server.url, node_name, config_file)
    write_private(identity.ca, ca)
    write_private(identity.client, pair.pem)
    identity.serving.unlink(missing_ok=True)
    known = {"server": server.url, "nodeName": node_name, "configFile": str(config_file) if config_file else None}
    write_private(folder / "cluster.json", json.dumps(known, indent=2).encode() + b"\n")
    return identity


def _refusal(server: Server, error: ApiError, what: str) -> JoinError:
    if error.status == 401:
        return JoinError(
            f"{server.url} does not know the token: it has expired (they live an hour) or is mistyped; make a new one with "
            "`thunderfleet token`"
        )
    if error.status == 403:
        return JoinError(
            f"{server.url} knows the token but allows no {what}: bind ClusterRole system:node-bootstrapper to group "
            f"system:bootstrappers ({error.message})"
        )
    return JoinError(f"{server.url}: {what}: {error}")


async def _check_name(kube: Kube, node_name: str) -> None:
    standing = await kube.get_or_none(f"/api/v1/nodes/{node_name}")
    if standing is None:
        return
    lease = await kube.get_or_none(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node_name}")
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    seen = f"last heard of at {renewed}" if renewed else "without a Lease"
    raise JoinError(
        f"a Node named {node_name} exists already ({seen}): choose another nodeName, or give --replace if this machine is to "
        "take its place and the other kubelet is gone"
    )


async def join(
    *,
    server: Server,
    token: str,
    wanted_hash: str,
    root: Path,
    node_name: str,
    config_file: Path | None,
    replace: bool,
    seconds: int,
    limit: float = CERTIFICATE_SECONDS,
) -> Identity:
    """Joins and writes the identity into ``root``. Raises JoinError or CertificateError; then nothing was written."""
    ca = await fetch_ca(server, wanted_hash)
    identity_folder(root).mkdir(mode=0o700, parents=True, exist_ok=True)
    trusted = identity_folder(root) / "joining-ca.crt"
    candidate = identity_folder(root) / "joining.pem"
    write_private(trusted, ca)
    try:
        async with Kube.with_files(server.url, trusted, token=token) as kube:
            try:
                pair = await obtain(kube, node_name, CLIENT_SIGNER, seconds, limit=limit)
            except ApiError as error:
                raise _refusal(server, error, "certificate requests") from None
        if not replace:
            write_private(candidate, pair.pem)
            async with Kube.with_files(server.url, trusted, certificate=candidate, key=candidate) as kube:
                try:
                    await _check_name(kube, node_name)
                except ApiError as error:
                    raise JoinError(f"{server.url}: whether a Node {node_name} exists: {error}") from None
        return save_identity(root, server, node_name, config_file, ca, pair)
    finally:
        trusted.unlink(missing_ok=True)
        candidate.unlink(missing_ok=True)


def standing_identity(root: Path, server: Server | None, node_name: str | None) -> Identity | None:
    """The identity in ``root`` if it can be used on; None when there is none or its certificate has ended.

    Raises JoinError when it belongs to another cluster or another name than what is asked for (None: whatever it is).
    """
    identity = load_identity(root)
    if identity is None:
        return None
    if server is not None and identity.server != server.url:
        raise JoinError(
            f"{root} holds the identity of a node of {identity.server}, not of {server.url}: give another --root, or remove "
            f"{identity.folder} if that cluster is no more"
        )
    if node_name is not None and identity.node_name != node_name:
        raise JoinError(
            f"{root} holds the identity of node {identity.node_name}, not of {node_name}: give another --root, or the old name"
        )
    pair = read_pair(identity.client)
    if pair is None or not usable(pair, identity.node_name, datetime.now(UTC)):
        return None
    return identity
