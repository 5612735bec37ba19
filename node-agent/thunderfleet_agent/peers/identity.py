"""The agent's certificate, which peers verify by the SHA-256 digest in the NodeProfile.

Only this Mac can write its NodeProfile, so the digest there is the proof of identity. The certificate is signed by an authority
whose key is public (it is derived from AUTHORITY_SENTENCE) and which proves nothing: it exists because OpenSSL gives a program
the peer's certificate only if it can build a chain.

A child process creates the certificate, so that the cryptography library does not stay in the agent's memory. With a state
folder the certificate is kept there, mode 0600; without one it is new after every start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Failure, Host

log = logging.getLogger(__name__)

SECONDS = 30.0
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "authority.crt"
# Public: anybody can sign such certificates.
AUTHORITY_SENTENCE = b"thunderfleet agents know each other by digest, not by this authority"


@dataclass(frozen=True)
class Identity:
    """TLS contexts for servers and clients, and the SHA-256 of the certificate in hexadecimal."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    sha256: str


async def make(host: Host, state: Path | None = None) -> Identity:
    """Loads the certificate from the folder ``state``, or creates one and saves it there if possible.

    Raises RuntimeError if no certificate can be created.
    """
    if state is not None:
        kept = _load_saved(state)
        if kept is not None:
            return kept
    with tempfile.TemporaryDirectory(prefix="thunderfleet-agent-") as folder:
        outcome = await host.run((sys.executable, "-m", __name__, folder), SECONDS)
        if isinstance(outcome, Failure):
            raise RuntimeError(f"cannot create a certificate: {outcome}")
        made = load(Path(folder))
        if state is not None:
            _save(Path(folder), state)
        return made


def load(folder: Path) -> Identity:
    """Loads the identity in a folder. Raises OSError (which ssl.SSLError is) and ValueError."""
    contexts = []
    for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(purpose)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(folder / AUTHORITY)
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
        contexts.append(context)
    certificate = ssl.PEM_cert_to_DER_cert((folder / CERTIFICATE).read_text())
    return Identity(contexts[0], contexts[1], hashlib.sha256(certificate).hexdigest())


def _load_saved(state: Path) -> Identity | None:
    try:
        return load(state)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("cannot use the certificate in %s (%s); creating a new one", state, error)
        return None


def _save(made: Path, state: Path) -> None:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (KEY, AUTHORITY, CERTIFICATE):
            fresh = state / f".{name}.new"
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write((made / name).read_bytes())
            fresh.replace(state / name)
    except OSError as error:
        log.warning("cannot save the certificate in %s (%s); the next start creates another one", state, error)


def write(folder: Path) -> str:
    """Writes certificate, key (mode 0600) and the authority's certificate. Returns the certificate's SHA-256."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from thunderfleet_lib.net import tls

    key = Ed25519PrivateKey.generate()
    signer = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(AUTHORITY_SENTENCE).digest())
    issuer = tls.Issuer(tls.subject("thunderfleet-agents (vouches for nothing)"), signer)
    # Valid on a Mac with a wrong clock too, and never renewed: the digest identifies the Mac.
    always = tls.Validity(datetime(1970, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC))
    authority = tls.build_certificate(issuer.name, signer.public_key(), issuer, always, serial=1, ca=True)
    certificate = tls.build_certificate(tls.subject("thunderfleet-agent"), key.public_key(), issuer, always)
    text = tls.certificate_pem(certificate)
    (folder / CERTIFICATE).write_bytes(text)
    (folder / AUTHORITY).write_bytes(tls.certificate_pem(authority))
    tls.write_private(folder / KEY, tls.key_pem(key))
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text.decode())).hexdigest()


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
