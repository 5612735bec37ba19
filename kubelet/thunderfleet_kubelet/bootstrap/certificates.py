"""Certificates of a node: signing requests, and key and certificate in one PEM file.

One file, so that key and certificate always match. Approvers compare requests with the Node, so requests are exact.
"""

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from thunderfleet_lib.csr.names import CLIENT_SIGNER, NODE_PREFIX, REQUESTS, SERVING_SIGNER
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_kubelet.answers import Answers
from thunderfleet_kubelet.bootstrap import certificate_process
from thunderfleet_kubelet.bootstrap.certificate_process import BadPair, Facts
from thunderfleet_kubelet.bootstrap.certificate_process import CertificateError as CertificateError
from thunderfleet_kubelet.bootstrap.errors import join_again

log = logging.getLogger(__name__)

RENEW_AT = 0.8
POLL_SECONDS = 0.5
POLL_LIMIT_SECONDS = 5.0


@dataclass(frozen=True)
class Pair:
    """A private key and its certificate with chain, both PEM."""

    key: bytes
    certificate: bytes

    @property
    def facts(self) -> Facts:
        """The contents of the node's own certificate. Raises CertificateError if it is unreadable or does not match the key.

        The first call for a pair waits for a process.
        """
        return certificate_process.facts(self.key, self.certificate)

    @property
    def pem(self) -> bytes:
        """Both, key first."""
        return self.key + self.certificate


def user_of(node: str) -> str:
    """The user name of a node's kubelet."""
    return NODE_PREFIX + node


def csr_object(request: bytes, signer: str, seconds: int) -> Json:
    """The CertificateSigningRequest for ``request`` (PEM); ``seconds``: the lifetime to ask for.

    Its name follows from ``request``, so that it can be found if the answer to its creation is lost.
    """
    purpose = "client auth" if signer == CLIENT_SIGNER else "server auth"
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        # The API server records who approves a request only if another field of it has an owner.
        "metadata": {
            "name": f"thunderfleet-csr-{hashlib.sha256(request).hexdigest()[:16]}",
            "labels": {"app.kubernetes.io/name": "thunderfleet-kubelet"},
        },
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": signer,
            "usages": ["digital signature", purpose],
            "expirationSeconds": seconds,
        },
    }


def verdict(csr: Json) -> bytes | None:
    """The certificate (PEM) of a CertificateSigningRequest; None while it is pending. Raises CertificateError."""
    name = csr["metadata"]["name"]
    state = csr.get("status") or {}
    for one in state.get("conditions") or []:
        if one.get("type") in ("Denied", "Failed"):
            why = one.get("message") or "no reason given"
            raise CertificateError(f"certificate request {name} was {one['type'].lower()}: {why}")
    text = state.get("certificate")
    return base64.b64decode(text) if text else None


async def obtain(
    kube: Kube,
    node: str,
    signer: str,
    seconds: int,
    *,
    addresses: Sequence[str] = (),
    limit: float,
    again: str = "the kubelet sends a new request automatically",
) -> Pair:
    """Requests a certificate for a new key from ``signer`` and waits up to ``limit`` seconds.

    ``again``: how a new request is sent, as the end of a sentence.

    Raises CertificateError (denied, or not in time) and ApiError (the request failed).
    """
    key, request = await asyncio.to_thread(certificate_process.new_request, node, addresses)
    csr = await _sent(kube, csr_object(request, signer, seconds))
    name = str(csr["metadata"]["name"])
    log.info("sent certificate request %s (%s)", name, signer)
    pause = POLL_SECONDS
    try:
        async with asyncio.timeout(limit):
            while (certificate := verdict(csr)) is None:
                await asyncio.sleep(pause)
                pause = min(pause * 1.3, POLL_LIMIT_SECONDS)
                try:
                    csr = await kube.get(f"{REQUESTS}/{name}")
                except ApiError as error:
                    if error.status == 404:
                        raise CertificateError(f"certificate request {name} was deleted before it was signed") from None
                    if not error.transient:
                        raise
    except TimeoutError:
        who = "the controller manager and, on Macs with a control plane, io.thunderfleet.approver run"
        if signer == SERVING_SIGNER:
            who = "Thunderfleet's operator, which approves it, and the controller manager, which signs it, run"
        raise CertificateError(
            f"certificate request {name} was not signed within {limit:g} s and is abandoned: do not approve it. Check that "
            f"{who}; {again}. If nothing approves the new one, approve it within {limit:g} s: `kubectl get csr`, "
            "`kubectl certificate approve NAME`"
        ) from None
    pair = Pair(key, certificate)
    await asyncio.to_thread(lambda: pair.facts)
    return pair


async def _sent(kube: Kube, wanted: Json) -> Json:
    """Creates the request. If the answer is lost, checks whether the request exists: a second one would stay pending."""
    try:
        return await kube.create(REQUESTS, wanted)
    except ApiError as error:
        if not error.unanswered:
            raise
        try:
            return await kube.get(f"{REQUESTS}/{wanted['metadata']['name']}")
        except ApiError:
            raise error from None


def renew_at(pair: Pair, part: float = RENEW_AT) -> datetime:
    """The time at which ``part`` of the certificate's lifetime is over."""
    return pair.facts.starts + timedelta(seconds=lifetime(pair) * part)


def lifetime(pair: Pair) -> float:
    """The lifetime of the certificate in seconds."""
    return (pair.facts.ends - pair.facts.starts).total_seconds()


def usable(pair: Pair, node: str, now: datetime, addresses: Sequence[str] = ()) -> bool:
    """Whether the pair is for ``node``, valid at ``now``, and (for a server) has all ``addresses``."""
    facts = pair.facts
    if facts.user != user_of(node) or not facts.starts <= now < facts.ends:
        return False
    return {str(ipaddress.ip_address(address)) for address in addresses} <= set(facts.addresses)


def read_ahead(files: Sequence[Path], answers: Answers) -> None:
    """Has one process read all these pairs, so that later calls find their contents. Those calls report problems."""
    certificate_process.read(_all_held(files), answers)


def keep_read(files: Sequence[Path], answers: Answers) -> None:
    """Keeps the contents of the pairs that are in ``files`` now, for the ``read_ahead`` of the next start."""
    certificate_process.keep(_all_held(files), answers)


def _all_held(files: Sequence[Path]) -> list[tuple[bytes, bytes]]:
    pairs = []
    for file in files:
        with contextlib.suppress(CertificateError, OSError):
            pairs.append(_held(file))
    return [(pair.key, pair.certificate) for pair in pairs if pair is not None]


def read_pair(file: Path) -> Pair | None:
    """The pair in ``file``; None if there is no file. Raises CertificateError for other content."""
    pair = _held(file)
    if pair is None:
        return None
    try:
        _ = pair.facts
    except BadPair as error:
        raise CertificateError(f"{file}: {error}; delete it and {join_again()}") from None
    return pair


def _held(file: Path) -> Pair | None:
    """The same, without a look into the certificate."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    mark = text.find(b"-----BEGIN CERTIFICATE-----")
    if mark <= 0 or b"PRIVATE KEY-----" not in text[:mark]:
        raise CertificateError(f"{file}: no key and certificate found; delete it and {join_again()}")
    return Pair(text[:mark], text[mark:])
