"""The agent's certificate: self-signed, new with every start, known to others by the SHA-256 that its NodeProfile shows.

No authority vouches for it. Only this Mac can write its NodeProfile, so the digest there is the proof. It is made in a child
process that ends at once, because the cryptography library would stay in the agent's memory for one use; the key touches only
a folder of mode 0700 that is gone as soon as it is loaded.
"""

from __future__ import annotations

import ssl
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_agent.host import Failure, Host

SECONDS = 30.0
YEARS = 10


@dataclass(frozen=True)
class Identity:
    """What TLS servers use, and the certificate's SHA-256 in hexadecimal."""

    context: ssl.SSLContext
    sha256: str


async def make(host: Host) -> Identity:
    """Raises RuntimeError, naming why, when no certificate can be made."""
    with tempfile.TemporaryDirectory(prefix="thunderfleet-agent-") as folder:
        outcome = await host.run((sys.executable, "-m", __name__, folder), SECONDS)
        if isinstance(outcome, Failure):
            raise RuntimeError(f"no certificate could be made: {outcome}")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(Path(folder) / "tls.crt", Path(folder) / "tls.key")
        return Identity(context, outcome.text.strip())


def write(folder: Path) -> str:
    """Writes ``tls.crt`` and ``tls.key`` (mode 0600) and gives the certificate's SHA-256."""
    import os
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509.oid import NameOID

    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "thunderfleet-agent")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, None)
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    with open(os.open(folder / "tls.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return certificate.fingerprint(hashes.SHA256()).hex()


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
