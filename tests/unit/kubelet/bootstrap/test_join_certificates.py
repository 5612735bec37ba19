"""Certificate requests: their content, the answers, and renewal."""

import asyncio
import base64
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_kubelet import oneoff
from thunderfleet_kubelet.answers import Answers
from thunderfleet_kubelet.bootstrap import certificate_process, renewer
from thunderfleet_kubelet.bootstrap.certificate_work import new_key, signing_request
from thunderfleet_kubelet.bootstrap.certificates import (
    CertificateError,
    Pair,
    csr_object,
    obtain,
    read_ahead,
    read_pair,
    renew_at,
    usable,
    verdict,
)
from thunderfleet_kubelet.bootstrap.renewer import Renewer
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.csr.names import CLIENT_SIGNER, SERVING_SIGNER
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_lib.net.tls import write_private

START = datetime(2026, 1, 1, tzinfo=UTC)


def sign(request: bytes, start: datetime = START, life: timedelta = timedelta(days=10)) -> bytes:
    """A certificate (PEM) for a CSR (PEM), from a temporary CA."""
    csr = x509.load_pem_x509_csr(request)
    ca = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(csr.subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")]))
        .public_key(csr.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + life)
    )
    for extension in csr.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(ca, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def pair(node: str = "studio-1", addresses: tuple[str, ...] = (), **times: Any) -> Pair:
    key = new_key()
    return Pair(key, sign(signing_request(key, node, addresses), **times))


def test_a_client_request_names_the_node_and_nothing_else() -> None:
    csr = x509.load_pem_x509_csr(signing_request(new_key(), "studio-1"))
    assert csr.is_signature_valid
    assert [(one.oid, one.value) for one in csr.subject] == [
        (NameOID.ORGANIZATION_NAME, "system:nodes"),
        (NameOID.COMMON_NAME, "system:node:studio-1"),
    ]
    assert len(csr.extensions) == 0
    assert isinstance(csr.public_key(), ec.EllipticCurvePublicKey)


def test_a_serving_request_names_just_the_addresses() -> None:
    csr = x509.load_pem_x509_csr(signing_request(new_key(), "studio-1", ["192.168.64.11", "fd00::1"]))
    names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["192.168.64.11", "fd00::1"]
    assert len(list(names)) == 2


@pytest.mark.parametrize(("signer", "purpose"), [(CLIENT_SIGNER, "client auth"), (SERVING_SIGNER, "server auth")])
def test_usages_are_what_an_approver_allows_of_an_elliptic_key(signer: str, purpose: str) -> None:
    made = csr_object(b"pem", signer, 3600)
    assert made["spec"] == {
        "request": base64.b64encode(b"pem").decode(),
        "signerName": signer,
        "usages": ["digital signature", purpose],
        "expirationSeconds": 3600,
    }


def test_verdicts() -> None:
    name = {"metadata": {"name": "csr-1"}}
    assert verdict(name) is None
    assert verdict({**name, "status": {"conditions": [{"type": "Approved"}]}}) is None
    assert verdict({**name, "status": {"certificate": base64.b64encode(b"pem").decode()}}) == b"pem"
    with pytest.raises(CertificateError, match="csr-1 was denied: not you"):
        verdict({**name, "status": {"conditions": [{"type": "Denied", "message": "not you"}]}})


def test_it_is_renewed_at_four_fifths_of_its_life() -> None:
    assert renew_at(pair(life=timedelta(days=10))) == START + timedelta(days=8)


@pytest.mark.parametrize(
    ("node", "after", "addresses", "good"),
    [
        ("studio-1", timedelta(days=1), [], True),
        ("studio-2", timedelta(days=1), [], False),
        ("studio-1", timedelta(days=10), [], False),
        ("studio-1", timedelta(days=-1), [], False),
        ("studio-1", timedelta(days=1), ["192.168.64.11"], True),
        ("studio-1", timedelta(days=1), ["192.168.64.11", "10.0.0.1"], False),
    ],
)
def test_usable(node: str, after: timedelta, addresses: list[str], good: bool) -> None:
    held = pair(addresses=("192.168.64.11",))
    assert usable(held, node, START + after, addresses) is good


def test_a_client_certificate_cannot_serve() -> None:
    assert not usable(pair(), "studio-1", START, ["192.168.64.11"])


def test_a_pair_is_read_back(tmp_path: Path) -> None:
    held = pair()
    write_private(tmp_path / "client.pem", held.pem)
    assert read_pair(tmp_path / "client.pem") == held
    assert read_pair(tmp_path / "none.pem") is None


def test_a_mixed_pair_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path / "client.pem", pair().key + pair().certificate)
    with pytest.raises(CertificateError, match="does not match the key"):
        read_pair(tmp_path / "client.pem")
    write_private(tmp_path / "client.pem", b"garbage")
    with pytest.raises(CertificateError, match="no key and certificate found"):
        read_pair(tmp_path / "client.pem")


def test_one_process_reads_all_certificates_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("client.pem", "serving.pem", "other.pem", "damaged.pem", "none.pem")]
    held, serving, other = pair(), pair(addresses=("192.168.64.11",)), Pair(pair().key, pair().certificate)
    for file, content in zip(files, (held.pem, serving.pem, other.pem, b"damaged"), strict=False):
        write_private(file, content)
    orders: list[dict[str, Any]] = []
    done = oneoff.done

    def counted(module: str, order: dict[str, Any]) -> dict[str, Any]:
        orders.append(order)
        return done(module, order)

    monkeypatch.setattr(oneoff, "done", counted)
    read_ahead(files, Answers(tmp_path / "answers.json"))
    assert len(orders) == 1
    assert [read_pair(file) for file in files[:2]] == [held, serving]
    assert usable(serving, "studio-1", START, ["192.168.64.11"])
    with pytest.raises(CertificateError, match="does not match the key"):
        read_pair(files[2])
    assert len(orders) == 1


def test_certificates_are_read_and_requested_on_a_machine_that_can_start_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = pair(addresses=("192.168.64.11",))
    write_private(tmp_path / "client.pem", held.pem)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    read = read_pair(tmp_path / "client.pem")
    assert read == held and usable(held, "studio-1", START, ["192.168.64.11"])
    assert "certificate_work does not exist (no such command in PATH); working without it" in caplog.text
    key, request = certificate_process.new_request("studio-1")
    assert Pair(key, sign(request)).facts.user == "system:node:studio-1"


def test_a_process_that_joins_and_ends_works_with_certificates_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with oneoff.here(certificate_process.WORK):
        key, request = certificate_process.new_request("studio-1")
        assert Pair(key, sign(request)).facts.user == "system:node:studio-1"
    assert caplog.text == ""
    certificate_process.new_request("studio-1")
    assert "working without it" in caplog.text, "only there"


class Signer:
    """An API server that accepts one request, and signs it when ``ready`` or denies it."""

    def __init__(self) -> None:
        self.csr: dict[str, Any] = {}
        self.asked = 0
        self.answers: list[Any] = []
        self.accepted = 0
        self.lose: ApiError | None = None
        """What the client of the creation sees, although the request is there."""
        self.refuse: ApiError | None = None

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.refuse is not None:
            raise self.refuse
        self.csr = body
        self.accepted += 1
        if self.lose is not None:
            raise self.lose
        return self.csr

    async def get(self, path: str) -> dict[str, Any]:
        self.asked += 1
        if not self.csr or path.rpartition("/")[2] != self.csr["metadata"]["name"]:
            raise ApiError(404, "NotFound", path)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer == "sign":
            certificate = sign(base64.b64decode(self.csr["spec"]["request"]))
            return {**self.csr, "status": {"certificate": base64.b64encode(certificate).decode()}}
        if answer == "other":
            return {**self.csr, "status": {"certificate": base64.b64encode(pair().certificate).decode()}}
        return self.csr


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thunderfleet_kubelet.bootstrap.certificates.POLL_SECONDS", 0.0)


async def ask(signer: Signer, limit: float = 10.0) -> Pair:
    return await obtain(cast(Kube, signer), "studio-1", CLIENT_SIGNER, 3600, limit=limit)


@pytest.mark.usefixtures("quick")
async def test_obtaining_waits_through_an_api_server_that_stumbles() -> None:
    signer = Signer()
    signer.answers = [None, ApiError(0, "Unreachable", "away"), ApiError(503, "ServiceUnavailable", "busy"), "sign"]
    held = await ask(signer)
    assert usable(held, "studio-1", START)
    assert signer.asked == 4


@pytest.mark.usefixtures("quick")
async def test_a_request_whose_answer_is_lost_is_found_and_not_sent_again() -> None:
    signer = Signer()
    signer.lose = ApiError(0, "Timeout", "no response")
    signer.answers = [None, "sign"]
    held = await ask(signer)
    assert usable(held, "studio-1", START)
    assert signer.accepted == 1


@pytest.mark.parametrize("refusal", [ApiError(0, "Unreachable", "refused"), ApiError(403, "Forbidden", "not you")])
async def test_a_request_that_did_not_arrive_says_why(refusal: ApiError) -> None:
    signer = Signer()
    signer.refuse = refusal
    with pytest.raises(ApiError) as caught:
        await ask(signer)
    assert caught.value is refusal


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("answer", "words"),
    [(ApiError(404, "NotFound", "gone"), "was deleted before it was signed"), ("other", "does not match the key")],
)
async def test_obtaining_ends_with_a_sentence(answer: Any, words: str) -> None:
    signer = Signer()
    signer.answers = [answer]
    with pytest.raises(CertificateError, match=words):
        await ask(signer)


@pytest.mark.usefixtures("quick")
async def test_obtaining_has_a_limit_that_says_what_to_do() -> None:
    with pytest.raises(CertificateError, match=r"thunderfleet-csr-[0-9a-f]{16} was not signed .*`kubectl get csr`"):
        await ask(Signer(), limit=0.05)


async def test_a_renewer_asks_again_after_trouble_and_puts_the_pair_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewer, "BACKOFF", Backoff(first=0.0, limit=0.0))
    now = datetime.now(UTC)
    old = pair(start=now - timedelta(days=9), life=timedelta(days=10))
    new = pair(start=now, life=timedelta(days=10))
    answers: list[Any] = [CertificateError("not approved"), new]
    put: asyncio.Future[Pair] = asyncio.get_running_loop().create_future()
    said: list[str | None] = []

    async def answer() -> Pair:
        one = answers.pop(0)
        if isinstance(one, Exception):
            raise one
        return cast(Pair, one)

    async def use(held: Pair) -> None:
        assert read_pair(tmp_path / "serving.pem") == held, "on disk before it is used"
        put.set_result(held)

    task = asyncio.ensure_future(Renewer("serving", tmp_path / "serving.pem", answer, use, said.append, old).run())
    try:
        assert await asyncio.wait_for(put, 60) == new
        await asyncio.sleep(0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert said == ["serving certificate: not approved", None]
    assert answers == []


class Renewals:
    """A renewer whose requests the test answers."""

    def __init__(self, folder: Path, held: Pair | None) -> None:
        self.asked: asyncio.Queue[asyncio.Future[Pair]] = asyncio.Queue()
        self.used: asyncio.Queue[Pair] = asyncio.Queue()
        self.renewer = Renewer("serving", folder / "serving.pem", self._request, self.used.put, pair=held)

    async def _request(self) -> Pair:
        answer: asyncio.Future[Pair] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        return await answer

    async def __aenter__(self) -> "Renewals":
        self._task = asyncio.ensure_future(self.renewer.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def next(self) -> asyncio.Future[Pair]:
        return await asyncio.wait_for(self.asked.get(), 60)


async def test_a_renewer_asks_at_once_when_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewer, "BACKOFF", Backoff(first=0.0, limit=0.0))
    now = datetime.now(UTC)
    held, new = (pair(start=now, life=timedelta(days=10)) for _ in range(2))
    async with Renewals(tmp_path, held) as renewals:
        await asyncio.sleep(0)
        assert renewals.asked.empty()
        renewals.renewer.renew_now()
        given_up = await renewals.next()
        renewals.renewer.renew_now()
        failing = await renewals.next()
        assert given_up.cancelled(), "it asks for what nobody wants any more"
        failing.set_exception(CertificateError("not approved"))
        (await renewals.next()).set_result(new)
        assert await asyncio.wait_for(renewals.used.get(), 60) == new
        await asyncio.sleep(0)
        assert renewals.asked.empty()


@pytest.mark.parametrize("off", [timedelta(days=365), timedelta(days=-365)])
async def test_a_wrong_clock_causes_no_storm_of_requests(tmp_path: Path, off: timedelta) -> None:
    """With a clock that is a year ahead, a new certificate has expired already."""
    new = pair(start=datetime.now(UTC) - off, life=timedelta(days=10))
    async with Renewals(tmp_path, None) as renewals:
        (await renewals.next()).set_result(new)
        assert await asyncio.wait_for(renewals.used.get(), 60) == new
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(renewals.asked.get(), 0.2)


async def test_a_certificate_is_renewed_by_elapsed_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that is a year behind, its end never comes."""
    elapsed = 0.0
    monkeypatch.setattr(renewer, "time", SimpleNamespace(monotonic=lambda: elapsed))
    monkeypatch.setattr(renewer, "STEP_SECONDS", 0.001)
    held = pair(start=datetime.now(UTC) + timedelta(days=365), life=timedelta(days=10))
    async with Renewals(tmp_path, held) as renewals:
        await asyncio.sleep(0)
        assert renewals.asked.empty()
        elapsed = 9 * 86400.0
        await renewals.next()
