"""Certificates of a control plane that is set up again: what fits is kept, what does not is issued again."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from thunderfleet_controlplane.pki import RENEW_DAYS, PkiError, make_pki
from thunderfleet_controlplane.pki_files import ClusterPki

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
SERVER, LOCAL = ("127.0.0.1", "::1", "studio-1.local", "192.168.1.7"), ("127.0.0.1", "localhost")


def made(folder: Path, server: tuple[str, ...] = SERVER, days: int = 0) -> ClusterPki:
    return make_pki(folder / "pki", server, LOCAL, NOW + datetime.timedelta(days=days))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "pki").iterdir()}


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    first = made(tmp_path)
    before = contents(tmp_path)
    second = made(tmp_path, days=200)
    assert contents(tmp_path) == before
    assert (second.ca_hash, second.issued) == (first.ca_hash, ())
    assert "apiserver" in first.issued


def test_certificates_near_their_end_are_renewed_and_authorities_are_not(tmp_path: Path) -> None:
    first = made(tmp_path)
    before = contents(tmp_path)
    again = made(tmp_path, days=366 - RENEW_DAYS)
    after = contents(tmp_path)
    assert set(again.issued) == set(first.issued) and again.ca_hash == first.ca_hash
    kept = {name for name in before if before[name] == after[name]}
    roots = ("ca", "front-proxy-ca", "etcd-ca")
    assert kept == {f"{name}.{kind}" for name in roots for kind in ("crt", "key")} | {
        "service-accounts.key",
        "service-accounts.pub",
    }
    leaf = x509.load_pem_x509_certificates(after["apiserver.crt"])[0]
    assert leaf.not_valid_after_utc > NOW + datetime.timedelta(days=365 + 366 - RENEW_DAYS - 2)


def test_another_address_changes_only_the_api_servers_certificate(tmp_path: Path) -> None:
    made(tmp_path)
    assert made(tmp_path, (*SERVER[:-1], "10.0.0.9")).issued == ("apiserver",)
    assert made(tmp_path, (*SERVER[:-1], "10.0.0.9")).issued == ()


@pytest.mark.parametrize("lost", ["admin.crt", "admin.key", "etcd.key", "apiserver.crt"])
def test_an_interrupted_run_is_completed(tmp_path: Path, lost: str) -> None:
    """A key is written before its certificate; either may be the last thing that was written."""
    made(tmp_path)
    (tmp_path / "pki" / lost).unlink()
    assert made(tmp_path).issued == (lost.split(".")[0],)
    assert made(tmp_path).issued == ()


def test_a_key_of_another_certificate_is_not_used(tmp_path: Path) -> None:
    made(tmp_path)
    folder = tmp_path / "pki"
    (folder / "admin.key").write_bytes((folder / "etcd.key").read_bytes())
    assert made(tmp_path).issued == ("admin",)


def test_an_authority_without_its_certificate_keeps_its_key(tmp_path: Path) -> None:
    """So machines that know the hash of the key can still join."""
    first = made(tmp_path)
    (tmp_path / "pki" / "ca.crt").unlink()
    assert made(tmp_path).ca_hash == first.ca_hash


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda folder: (folder / "ca.key").unlink(), "restore the key from a backup"),
        (lambda folder: (folder / "ca.key").write_bytes(b"x"), "is not a private key"),
        (lambda folder: (folder / "ca.crt").write_bytes(b"x"), "is not a certificate"),
        (lambda folder: (folder / "ca.key").write_bytes((folder / "etcd-ca.key").read_bytes()), "restore both from one backup"),
    ],
)
def test_a_damaged_authority_is_not_replaced(tmp_path: Path, damage: object, text: str) -> None:
    """A new one would lock out every machine of the cluster."""
    made(tmp_path)
    assert callable(damage)
    damage(tmp_path / "pki")
    with pytest.raises(PkiError, match=text):
        made(tmp_path)


def test_an_authority_that_has_expired_is_reported(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(PkiError, match=r"ca\.crt expired on 2036"):
        made(tmp_path, days=3651)
