"""Certificates and requests: what verifiers look at, and files that are private and whole."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from thunderfleet_lib.net import tls

START = datetime(2026, 1, 1, tzinfo=UTC)
VALIDITY = tls.Validity(START, START + timedelta(days=10))


def authority(key: tls.PrivateKey, serial: int | None = None) -> tuple[tls.Issuer, x509.Certificate]:
    name = tls.subject("authority")
    issuer = tls.Issuer(name, key)
    usages = ("digital_signature", "key_cert_sign")
    return issuer, tls.build_certificate(name, key.public_key(), issuer, VALIDITY, serial=serial, ca=True, key_usages=usages)


@pytest.mark.parametrize("make", [tls.new_key, Ed25519PrivateKey.generate], ids=["P-256", "Ed25519"])
def test_an_authority_signs_a_leaf(make: type[Ed25519PrivateKey]) -> None:
    issuer, ca = authority(make())
    key = tls.new_key()
    leaf = tls.build_certificate(
        tls.subject("node", ["system:nodes", "other"]),
        key.public_key(),
        issuer,
        VALIDITY,
        key_usages=("digital_signature",),
        extended_usages=(tls.SERVER_AUTH,),
        alternative_names=("10.0.0.1", "fd00::1", "node.example"),
    )
    leaf.verify_directly_issued_by(ca)
    assert [(one.oid, one.value) for one in leaf.subject] == [
        (NameOID.ORGANIZATION_NAME, "system:nodes"),
        (NameOID.ORGANIZATION_NAME, "other"),
        (NameOID.COMMON_NAME, "node"),
    ]
    assert (leaf.not_valid_before_utc, leaf.not_valid_after_utc) == (VALIDITY.start, VALIDITY.end)
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, False, None)
    usage = leaf.extensions.get_extension_for_class(x509.KeyUsage)
    assert (usage.critical, usage.value.digital_signature) == (True, True)
    assert not (usage.value.key_cert_sign or usage.value.key_encipherment or usage.value.crl_sign)
    assert list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("fd00::1")]
    assert names.get_values_for_type(x509.DNSName) == ["node.example"]
    known = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == known


def test_an_authority_may_sign_leaves_only() -> None:
    _, ca = authority(tls.new_key())
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign) == (True, False)


def test_a_certificate_without_usages_and_names_has_no_such_extensions() -> None:
    issuer, _ = authority(tls.new_key())
    leaf = tls.build_certificate(tls.subject("x"), tls.new_key().public_key(), issuer, VALIDITY)
    assert {type(one.value) for one in leaf.extensions} == {x509.BasicConstraints, x509.AuthorityKeyIdentifier}


def test_equal_inputs_of_ed25519_give_equal_bytes() -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    one, other = (tls.certificate_pem(authority(key, serial=7)[1]) for _ in range(2))
    assert one == other
    assert authority(key)[1].serial_number != authority(key)[1].serial_number
    assert authority(key, serial=7)[1].serial_number == 7


def test_openssl_takes_key_and_certificate(tmp_path: Path) -> None:
    key = tls.new_key()
    _, certificate = authority(key)
    tls.write_private(tmp_path / "key", tls.key_pem(key))
    (tmp_path / "certificate").write_bytes(tls.certificate_pem(certificate))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "certificate", tmp_path / "key")


def test_a_request_names_its_subject_and_addresses() -> None:
    csr = x509.load_pem_x509_csr(tls.build_request(tls.subject("me", ["us"]), tls.new_key(), ["10.0.0.1"]))
    assert csr.is_signature_valid
    assert [one.value for one in csr.subject] == ["us", "me"]
    assert isinstance(csr.public_key(), ec.EllipticCurvePublicKey)
    names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert len(x509.load_pem_x509_csr(tls.build_request(tls.subject("me"), tls.new_key())).extensions) == 0


def test_the_hash_of_a_public_key_is_kubeadms_also_of_an_rsa_key() -> None:
    public = rsa.generate_private_key(65537, 2048).public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert tls.public_key_hash(public) == f"sha256:{hashlib.sha256(der).hexdigest()}"


def test_a_private_file_is_private_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    tls.write_private(file, b"one")
    tls.write_private(file, b"two")
    assert file.read_bytes() == b"two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["client.pem"]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.pem"
    tls.write_private(file, b"one")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        tls.write_private(file, b"two")
    assert file.read_bytes() == b"one"
    assert [one.name for one in tmp_path.iterdir()] == ["client.pem"]


def test_leftovers_of_a_crash_are_replaced_and_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / f".client.pem.{os.getpid()}").symlink_to(elsewhere)
    tls.write_private(tmp_path / "client.pem", b"one")
    assert (tmp_path / "client.pem").read_bytes() == b"one"
    assert not elsewhere.exists()
