"""Joining through an API server with real TLS: what is sent, in which order, and the errors."""

import base64
import ipaddress
import json
import ssl
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_kubelet.bootstrap import arguments, discovery, join
from thunderfleet_kubelet.bootstrap import identity as identities
from thunderfleet_kubelet.bootstrap.arguments import Server
from thunderfleet_kubelet.bootstrap.certificates import read_pair, usable
from thunderfleet_kubelet.bootstrap.errors import JoinError, UsageError
from thunderfleet_lib.net.discovery import ca_hash, shown

TOKEN = "abcdef.0123456789abcdef"
PEM = serialization.Encoding.PEM


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """A cluster's CA."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self.sign(self.key.public_key(), name("kubernetes"), ca=True)
        self.hash = ca_hash(self.certificate)
        self.pem = self.certificate.public_bytes(PEM)

    def sign(self, public: Any, subject: x509.Name, *extensions: x509.ExtensionType, ca: bool = False) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name("kubernetes"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=ca,
                    crl_sign=ca,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())


@dataclass
class Cluster:
    """An API server with the requests that joining uses."""

    authority: Authority
    server: Server
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    nodes: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path, who): who is a token, a certificate's name, or nothing."""
    csr: dict[str, Any] = field(default_factory=dict)
    cluster_info: bool = False
    padding: str = ""
    """More bytes of ``cluster_info``."""

    async def answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        who = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if peer:
            who = next(value for part in peer["subject"] for key, value in part if key == "commonName")
        self.seen.append((request.method, request.path, who))
        if request.path == discovery.CLUSTER_INFO and self.cluster_info:
            ca = base64.b64encode(self.authority.pem).decode()
            known = {"clusters": [{"cluster": {"certificate-authority-data": ca}}]}
            return web.json_response({"data": {"kubeconfig": json.dumps(known), "more": self.padding}})
        if not peer and who not in self.tokens:
            return web.json_response({"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized"}, status=401)
        if "certificatesigningrequests" in request.path:
            if request.method == "POST":
                self.csr = {**await request.json(), "metadata": {"name": "csr-1"}}
                return web.json_response(self.csr, status=201)
            asked = x509.load_pem_x509_csr(base64.b64decode(self.csr["spec"]["request"]))
            signed = self.authority.sign(
                asked.public_key(), asked.subject, x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH])
            )
            return web.json_response(
                {**self.csr, "status": {"certificate": base64.b64encode(signed.public_bytes(PEM)).decode()}}
            )
        standing = self.nodes.get(request.path)
        if standing is None:
            return web.json_response({"kind": "Status", "reason": "NotFound", "message": "not found"}, status=404)
        return web.json_response(standing)


def tls(authority: Authority, folder: Path, *, with_ca: bool) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = authority.sign(
        key.public_key(),
        name("kube-apiserver"),
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
        x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    file = folder / "apiserver.pem"
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(private + leaf.public_bytes(PEM) + (authority.pem if with_ca else b""))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    if with_ca:
        # OpenSSL completes its chain from what it trusts: a server that is not to show its CA cannot ask for clients' either.
        context.load_verify_locations(cadata=authority.pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@pytest.fixture
def sends_ca() -> bool:
    return True


@pytest.fixture
async def cluster(tmp_path: Path, sends_ca: bool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("thunderfleet_kubelet.bootstrap.certificates.POLL_SECONDS", 0.0)
    authority = Authority()
    made = Cluster(authority, Server("127.0.0.1", 0))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls(authority, tmp_path, with_ca=sends_ca)).start()
    made.server = Server("127.0.0.1", runner.addresses[0][1])
    yield made
    await runner.cleanup()


async def do(cluster: Cluster, root: Path, **other: Any) -> identities.NodeIdentity:
    given: dict[str, Any] = {
        "server": cluster.server,
        "token": TOKEN,
        "wanted_hash": cluster.authority.hash,
        "root": root,
        "node_name": "studio-1",
        "config_file": None,
        "replace": False,
        "seconds": 3600,
        **other,
    }
    return await join.join(**given)


async def test_joining_leaves_a_private_identity(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "root"
    identity = await do(cluster, root, config_file=tmp_path / "kubelet.yaml")
    assert identities.load_identity(root) == identity
    assert identity.config_file == tmp_path / "kubelet.yaml"
    assert identity.ca.read_bytes() == cluster.authority.pem
    held = read_pair(identity.client)
    assert held is not None
    assert usable(held, "studio-1", datetime.now(UTC))
    assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700
    files = {one.name: stat.S_IMODE(one.stat().st_mode) for one in identity.folder.iterdir()}
    assert files == {"ca.crt": 0o600, "client.pem": 0o600, "cluster.json": 0o600}
    assert identities.usable_identity(root, cluster.server, "studio-1") == identity


async def test_the_name_is_asked_for_with_the_certificate_not_the_token(cluster: Cluster, tmp_path: Path) -> None:
    await do(cluster, tmp_path / "root")
    assert ("GET", "/api/v1/nodes/studio-1", "system:node:studio-1") in cluster.seen
    assert {who for _, path, who in cluster.seen if "certificatesigningrequests" in path} == {TOKEN}


async def test_a_wrong_hash_sends_no_token(cluster: Cluster, tmp_path: Path) -> None:
    wrong = "sha256:" + "0" * 64
    with pytest.raises(JoinError) as caught:
        await do(cluster, tmp_path / "root", wanted_hash=wrong)
    said = str(caught.value)
    assert wrong in said
    assert cluster.authority.hash in said
    assert "the token was not sent" in said
    assert all(who == "" for _, _, who in cluster.seen)
    assert not (tmp_path / "root").exists()


async def test_the_servers_own_certificate_is_no_ca(cluster: Cluster, tmp_path: Path) -> None:
    leaf = (await discovery._handshake(cluster.server))[0]
    with pytest.raises(JoinError, match="the token was not sent"):
        await do(cluster, tmp_path / "root", wanted_hash=ca_hash(leaf))


@pytest.mark.parametrize("sends_ca", [False])
async def test_a_ca_that_is_only_published(cluster: Cluster, tmp_path: Path) -> None:
    cluster.cluster_info = True
    identity = await do(cluster, tmp_path / "root", replace=True)
    assert identity.ca.read_bytes() == cluster.authority.pem
    assert ("GET", discovery.CLUSTER_INFO, "") in cluster.seen


@pytest.mark.parametrize("sends_ca", [False])
async def test_a_server_that_is_not_trusted_yet_cannot_send_without_end(cluster: Cluster, tmp_path: Path) -> None:
    cluster.cluster_info, cluster.padding = True, "x" * discovery.MAX_INFO
    with pytest.raises(JoinError, match="no CA with hash"):
        await do(cluster, tmp_path / "root", replace=True)
    assert TOKEN not in {who for _, _, who in cluster.seen}


def test_certificates_with_keys_that_cannot_be_read_do_not_count() -> None:
    """One machine at an address where an API server was must not keep a Mac from joining through another one."""
    good = Authority().certificate
    encoding = serialization.Encoding.DER
    curve = bytes.fromhex("06082a8648ce3d030107")
    unknown = good.public_bytes(encoding).replace(curve, curve[:-1] + b"\x7f")
    connection = SimpleNamespace(get_unverified_chain=lambda: [b"no certificate", unknown, good.public_bytes(encoding)])
    assert shown(connection) == [good]


@pytest.mark.parametrize("sends_ca", [False])
async def test_a_ca_that_is_shown_nowhere(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="no CA with hash"):
        await do(cluster, tmp_path / "root")


async def test_a_token_that_ran_out(cluster: Cluster, tmp_path: Path) -> None:
    cluster.tokens.clear()
    with pytest.raises(JoinError, match=r"expired .* `thunderfleet local token`") as caught:
        await do(cluster, tmp_path / "root")
    assert TOKEN not in str(caught.value)
    assert identities.load_identity(tmp_path / "root") is None


async def test_a_name_that_is_taken(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "root"
    cluster.nodes["/api/v1/nodes/studio-1"] = {"metadata": {"name": "studio-1"}}
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/studio-1"
    cluster.nodes[lease] = {"spec": {"renewTime": "2026-01-31T12:00:00Z"}}
    with pytest.raises(JoinError, match=r"studio-1 already exists .*2026-01-31T12:00:00Z.*--replace"):
        await do(cluster, root)
    assert identities.load_identity(root) is None
    assert list((root / "identity").iterdir()) == [], "no key stays behind"
    assert (await do(cluster, root, replace=True)).node_name == "studio-1"


async def test_no_answer(tmp_path: Path, cluster: Cluster) -> None:
    with pytest.raises(JoinError, match=r"https://127\.0\.0\.1:1: cannot connect .*check that the API server is running"):
        await do(cluster, tmp_path / "root", server=Server("127.0.0.1", 1))


async def test_an_identity_is_for_one_cluster_and_one_name(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert identities.usable_identity(root, cluster.server, "studio-1") is None
    await do(cluster, root)
    with pytest.raises(JoinError, match=r"not of https://127\.0\.0\.1:1"):
        identities.usable_identity(root, Server("127.0.0.1", 1), "studio-1")
    with pytest.raises(JoinError, match="node studio-1, not of studio-2"):
        identities.usable_identity(root, cluster.server, "studio-2")


async def test_half_an_identity_is_none(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "root"
    identity = await do(cluster, root)
    identity.client.unlink()
    assert identities.usable_identity(root, cluster.server, "studio-1") is None
    (identity.folder / "cluster.json").write_text("{")
    with pytest.raises(JoinError, match=r"cluster\.json: cannot read .*`thunderfleet-kubelet join --replace` with a new token"):
        identities.load_identity(root)


@pytest.mark.parametrize("text", ["http://1.2.3.4:6443", "1.2.3.4:6443", "https://", "https://1.2.3.4:99999", "https://a/b"])
def test_a_server_must_look_like_one(text: str) -> None:
    with pytest.raises(UsageError, match="must be https://HOST:PORT"):
        arguments.parse_server(text)


def test_servers() -> None:
    assert arguments.parse_server("https://192.168.64.1:6443/").url == "https://192.168.64.1:6443"
    assert arguments.parse_server("https://[fd00::1]:16443").url == "https://[fd00::1]:16443"


def test_tokens_and_hashes_are_checked_and_tokens_not_repeated() -> None:
    assert arguments.check_token(TOKEN) == TOKEN
    with pytest.raises(UsageError) as caught:
        arguments.check_token("ABCDEF.secret")
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="64 lower-case hexadecimal digits"):
        arguments.check_hash("sha256:12")
