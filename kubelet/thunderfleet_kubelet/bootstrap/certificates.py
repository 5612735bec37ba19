"""Keys and certificates of a node: asked for by CSR, kept in one file each, renewed before they end.

Key and certificate stand in the same PEM file, written whole and renamed into place: there is no moment in which one belongs
to another. The API server's own signer checks little, so what we ask for is exact: it is what an approver compares.
"""

import asyncio
import base64
import ipaddress
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_lib import tls
from thunderfleet_lib.kube import ApiError, Json, Kube
from thunderfleet_lib.tls import write_private

log = logging.getLogger(__name__)

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
NODES_GROUP = "system:nodes"
USER_PREFIX = "system:node:"
RENEW_AT = 0.8
POLL_SECONDS = 0.5
POLL_LIMIT_SECONDS = 5.0


class CertificateError(Exception):
    """No certificate came of a request; the message says why and what to do."""


@dataclass(frozen=True)
class Pair:
    """A private key and its certificate with chain, both PEM."""

    key: bytes
    certificate: bytes

    @property
    def leaf(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def pem(self) -> bytes:
        return self.key + self.certificate


def user_of(node: str) -> str:
    """The identity of a node's kubelet."""
    return USER_PREFIX + node


def new_key() -> bytes:
    """A new private key (PEM)."""
    return tls.key_pem(tls.new_key())


def signing_request(key: bytes, node: str, addresses: Sequence[str] = ()) -> bytes:
    """The CSR (PEM) of ``node``'s kubelet; with ``addresses`` for a server, without for a client."""
    private = serialization.load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return tls.build_request(tls.subject(user_of(node), [NODES_GROUP]), private, addresses)


def csr_object(request: bytes, signer: str, seconds: int) -> Json:
    """The CertificateSigningRequest for ``request`` (PEM), asking for a life of ``seconds``."""
    purpose = "client auth" if signer == CLIENT_SIGNER else "server auth"
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "thunderfleet-csr-"},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": signer,
            "usages": ["digital signature", purpose],
            "expirationSeconds": seconds,
        },
    }


def verdict(csr: Json) -> bytes | None:
    """The certificate (PEM) in a CSR object; None while nothing is decided. Raises CertificateError when it was refused."""
    name = csr["metadata"]["name"]
    state = csr.get("status") or {}
    for one in state.get("conditions") or []:
        if one.get("type") in ("Denied", "Failed"):
            why = one.get("message") or "no reason given"
            raise CertificateError(f"certificate request {name} was {one['type'].lower()}: {why}")
    text = state.get("certificate")
    return base64.b64decode(text) if text else None


async def obtain(kube: Kube, node: str, signer: str, seconds: int, *, addresses: Sequence[str] = (), limit: float) -> Pair:
    """Makes a key, asks ``signer`` for its certificate and waits up to ``limit`` seconds for it.

    Raises CertificateError (refused, or not in time) and ApiError (the request was not taken).
    """
    key = new_key()
    csr = await kube.create(CSRS, csr_object(signing_request(key, node, addresses), signer, seconds))
    name = str(csr["metadata"]["name"])
    log.info("certificate request %s (%s) sent", name, signer)
    pause = POLL_SECONDS
    try:
        async with asyncio.timeout(limit):
            while (certificate := verdict(csr)) is None:
                await asyncio.sleep(pause)
                pause = min(pause * 1.3, POLL_LIMIT_SECONDS)
                try:
                    csr = await kube.get(f"{CSRS}/{name}")
                except ApiError as error:
                    if error.status == 404:
                        raise CertificateError(f"certificate request {name} was deleted before it was signed") from None
                    if not error.transient:
                        raise
    except TimeoutError:
        raise CertificateError(
            f"certificate request {name} was not signed within {limit:g} s: approve it (kubectl certificate approve {name}), "
            "or see why nothing approves or signs (is the controller manager running?)"
        ) from None
    pair = Pair(key, certificate)
    _check(pair)
    return pair


def _check(pair: Pair) -> None:
    private = serialization.load_pem_private_key(pair.key, None)
    encoding = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*encoding) != pair.leaf.public_key().public_bytes(*encoding):
        raise CertificateError("the certificate that came back belongs to another key")


def renew_at(pair: Pair, part: float = RENEW_AT) -> datetime:
    """When ``part`` of the certificate's life is over."""
    leaf = pair.leaf
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return start + (end - start) * part


def usable(pair: Pair, node: str, now: datetime, addresses: Sequence[str] = ()) -> bool:
    """True when the pair is ``node``'s, in force at ``now``, and (for a server) good for all of ``addresses``."""
    leaf = pair.leaf
    names = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not names or names[0].value != user_of(node):
        return False
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        return False
    if not addresses:
        return True
    try:
        san = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    have = {str(address) for address in san.get_values_for_type(x509.IPAddress)}
    return {str(ipaddress.ip_address(address)) for address in addresses} <= have


def read_pair(file: Path) -> Pair | None:
    """The pair in ``file``; None when there is none. Raises CertificateError when the file holds something else."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    mark = text.find(b"-----BEGIN CERTIFICATE-----")
    if mark <= 0 or b"PRIVATE KEY-----" not in text[:mark]:
        raise CertificateError(f"{file}: holds no key and certificate; remove it and join again")
    pair = Pair(text[:mark], text[mark:])
    try:
        _check(pair)
    except ValueError as error:
        raise CertificateError(f"{file}: {error}; remove it and join again") from None
    return pair


class Renewer:
    """Keeps one certificate in force: ``ask`` for a new one at 80 % of its life, ``put`` it to use.

    ``pair`` is the one in use already, or None: then the first is asked for at once. A refusal is never the end: it asks again,
    less and less often; ``troubled`` hears the sentence (None: it is over).
    """

    def __init__(
        self,
        name: str,
        file: Path,
        ask: Callable[[], Awaitable[Pair]],
        put: Callable[[Pair], Awaitable[None]],
        troubled: Callable[[str | None], None] = lambda _: None,
        pair: Pair | None = None,
    ) -> None:
        self.name = name
        self.file = file
        self.ask = ask
        self.put = put
        self.troubled = troubled
        self.pair = pair

    async def run(self) -> None:
        """Renews until cancelled."""
        delay = 1.0
        while True:
            if self.pair is not None:
                await _sleep_until(renew_at(self.pair, RENEW_AT + random.uniform(-0.02, 0.02)))
            try:
                pair = await self.ask()
                await asyncio.to_thread(write_private, self.file, pair.pem)
                await self.put(pair)
            except (CertificateError, ApiError, OSError) as error:
                log.warning("%s certificate: %s; again in %.0f s", self.name, error, delay)
                self.troubled(f"{self.name} certificate: {error}")
                await asyncio.sleep(delay * random.uniform(0.7, 1.0))
                delay = min(delay * 2, 300.0)
                continue
            self.troubled(None)
            self.pair, delay = pair, 1.0
            log.info("%s certificate is good until %s", self.name, pair.leaf.not_valid_after_utc.isoformat())


async def _sleep_until(when: datetime) -> None:
    # In pieces: a Mac that slept for a night wakes up with its timers where they were.
    left = (when - datetime.now(UTC)).total_seconds()
    while left > 0:
        await asyncio.sleep(min(left, 60.0))
        left = (when - datetime.now(UTC)).total_seconds()
