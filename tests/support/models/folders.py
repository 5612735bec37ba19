"""Models at URIs: the server of the hub's tests with HTTPS, a certificate authority for it, and lists of files."""

import asyncio
import ssl
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from thunderfleet_lib.net import tls
from thunderfleet_localcluster.models import hub
from thunderfleet_localcluster.models.hub import sha256

LIST = "SHA256SUMS"


def valid() -> tls.Validity:
    """An hour before and a day after now."""
    now = datetime.now(UTC)
    return tls.Validity(now - timedelta(hours=1), now + timedelta(days=1))


@dataclass(frozen=True)
class Authority:
    """A certificate authority that no machine trusts."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> "Authority":
        key, name = tls.new_key(), tls.subject("tests")
        issuer = tls.Issuer(name, key)
        return cls(key, tls.build_certificate(name, key.public_key(), issuer, valid(), ca=True, key_usages=("key_cert_sign",)))

    @property
    def pem(self) -> str:
        return tls.certificate_pem(self.certificate).decode()

    def context(self, *names: str) -> ssl.SSLContext:
        """Of a server with these names and addresses."""
        key = tls.new_key()
        issuer = tls.Issuer(self.certificate.subject, self.key)
        made = tls.build_certificate(tls.subject(names[0]), key.public_key(), issuer, valid(), alternative_names=names)
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as file:
            file.write(tls.certificate_pem(made) + tls.key_pem(key))
            file.flush()
            found.load_cert_chain(file.name)
        return found


def listed(files: dict[str, bytes]) -> bytes:
    """The list of the files, as `sha256sum` writes it."""
    return "".join(f"{sha256(data)}  {name}\n" for name, data in files.items()).encode()


def with_list(files: dict[str, bytes]) -> tuple[dict[str, bytes], str]:
    """The files of a folder, with their list, and the hash of that."""
    found = listed(files)
    return {**files, LIST: found}, sha256(found)


def read(folder: Path) -> dict[str, bytes]:
    """The files in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def main(host: str, port: str, authority: str, *models: str) -> None:
    """Serves folders, each given as NAME=FOLDER, and writes the certificate of its authority to a file."""
    made = Authority.new()
    Path(authority).write_text(made.pem)
    server = hub.Hub()
    server.log = True
    for model in models:
        name, _, folder = model.partition("=")
        server.folders[name], _ = with_list(read(Path(folder)))
    asyncio.run(hub.serve(server, host, int(port), made.context(host)))


if __name__ == "__main__":
    main(*sys.argv[1:])
