"""Paths of the certificates and keys of a control plane. Pure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key (PEM)."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class PkiFiles:
    """Files of the control plane's certificates."""

    folder: Path

    def pair(self, name: str) -> Pair:
        """Certificate and key with this name."""
        return Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    @property
    def ca(self) -> Path:
        """The cluster's CA certificate."""
        return self.folder / "ca.crt"


@dataclass(frozen=True)
class ClusterPki(PkiFiles):
    """Values for joining machines and for the administrator. ``issued``: names of the new certificates."""

    ca_hash: str
    ca_pem: bytes
    admin_certificate: bytes
    admin_key: bytes
    issued: tuple[str, ...] = ()
