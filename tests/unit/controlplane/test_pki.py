"""Certificates: what a joiner relies on."""

import base64
import hashlib
import json
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from thunderfleet_controlplane.pki import SERVICE_ADDRESS, kubeconfig, make_pki


def test_server_sends_its_ca_and_the_hash_is_kubeadms(tmp_path: Path) -> None:
    pki = make_pki(tmp_path / "pki", ["127.0.0.1", "192.168.64.1"], ["127.0.0.1"])
    leaf, ca = x509.load_pem_x509_certificates(pki.pair("apiserver").certificate.read_bytes())
    leaf.verify_directly_issued_by(ca)
    der = ca.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert pki.ca_hash == "sha256:" + hashlib.sha256(der).hexdigest()
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "192.168.64.1", SERVICE_ADDRESS}
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    # OpenSSL takes every pair, and trusts the chain.
    for name in ("apiserver", "etcd", "admin", "kube-scheduler", "front-proxy-client"):
        pair = pki.pair(name)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key)


def test_keys_are_secret_and_authorities_are_apart(tmp_path: Path) -> None:
    pki = make_pki(tmp_path / "pki", [], [])
    assert pki.folder.stat().st_mode & 0o777 == 0o700
    for path in pki.folder.glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    authorities = {(pki.folder / f"{name}.crt").read_bytes() for name in ("ca", "front-proxy-ca", "etcd-ca")}
    assert len(authorities) == 3


def test_only_the_administrator_is_a_master(tmp_path: Path) -> None:
    pki = make_pki(tmp_path / "pki", [], [])
    masters = set()
    for path in pki.folder.glob("*.crt"):
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
        groups = [item.value for item in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
        if "system:masters" in groups:
            masters.add(path.name)
        usages = [item.value for item in certificate.extensions if item.oid == x509.ExtendedKeyUsage.oid]
        if path.name == "approver.crt":
            assert list(usages[0]) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert masters == {"admin.crt"}


def test_kubeconfig_holds_everything(tmp_path: Path) -> None:
    data = json.loads(kubeconfig("c", "https://127.0.0.1:1", b"CA", "me", b"CERT", b"KEY"))
    assert data["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(data["users"][0]["user"]["client-key-data"]) == b"KEY"
    assert data["current-context"] == data["contexts"][0]["name"]
