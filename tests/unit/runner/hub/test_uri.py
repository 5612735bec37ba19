"""Reading models from a folder at a URI: a real HTTPS server with its own authority, the real client and model store.

Only names and addresses are not real: every name has a public address, to which connections end at the server of the test.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from thunderfleet_crds.fetching import URI_AUTHORITIES, URI_HOSTS, URI_PRIVATE_HOSTS
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.modelstore import sums
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.manifest import Manifest, load
from thunderfleet_lib.modelstore.store import Busy, Store
from thunderfleet_localcluster.models import hub as testhub
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.models.hub import Fault, Hub, sha256
from thunderfleet_runner.hub import network
from thunderfleet_runner.hub.download import Download
from thunderfleet_runner.hub.errors import HubFault
from thunderfleet_runner.hub.folder import Folder
from thunderfleet_runner.hub.network import MAX_REDIRECTS, Network, refusal
from thunderfleet_runner.hub.resolve import resolve

from tests.support.models.folders import LIST, Authority, listed, read, with_list

HOST, OTHER = "models.example.com", "cdn.example.com:8443"
URI = f"https://{HOST}/folders/tiny/"
PUBLIC = "198.41.0.4"
LARGE = bytes(range(256)) * 40_000
FILES = {"config.json": b"{}", "empty.txt": b"", "model.safetensors": LARGE, "code.py": b"evil()", "model.bin": b"x"}
MODEL_FILES = {"config.json", "empty.txt", "model.safetensors"}


@dataclass
class Server:
    """The server, and what the pods of a Mac may ask."""

    hub: Hub
    network: Network
    dialled: list[tuple[str, int]]

    def serve(self, files: dict[str, bytes]) -> Folder:
        self.hub.folders["tiny"], digest = with_list(files)
        return Folder(URI, digest, self.network)

    def asked(self, name: str) -> list[tuple[str, str | None]]:
        return [(one.method, one.range) for one in self.hub.requests if one.path.endswith(f"/{name}")]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.new()


@pytest.fixture
def server(authority: Authority) -> Iterator[Server]:
    dialled: list[tuple[str, int]] = []
    with testhub.running(tls=authority.context(HOST, "cdn.example.com")) as hub:

        def dial(address: str, port: int) -> socket.socket:
            dialled.append((address, port))
            return socket.create_connection(("127.0.0.1", hub.port), 10)

        allowed = Network((HOST, OTHER), (), authority.pem, lambda host, port: [PUBLIC], dial)
        yield Server(hub, allowed, dialled)


def fails(run: Callable[[], object]) -> HubFault:
    with pytest.raises(HubFault) as caught:
        run()
    return caught.value


# --- the list and the files ----------------------------------------------------------------------------------------------


def test_a_model_is_sized_without_its_weights(server: Server, tmp_path: Path) -> None:
    tinymodel.make(tmp_path / "model", layers=2)
    folder = server.serve(read(tmp_path / "model"))
    (tmp_path / "skeleton").mkdir()
    found = resolve(folder, tmp_path / "skeleton")
    assert (found.reason, found.commit, found.token_used) == (Reason.RESOLVED, folder.sha256, False)
    assert found.bytes == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    assert found.model is not None and found.model.complete and found.model.sizes
    weights = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert server.asked("model.safetensors") == [("HEAD", None), ("GET", f"bytes=0-{min(256 * 1024, weights) - 1}")]
    assert set(server.dialled) == {(PUBLIC, 443)}
    assert {one.host for one in server.hub.requests} == {HOST}


def test_the_manifest_has_the_files_of_the_list_that_belong_to_a_model(server: Server) -> None:
    folder = server.serve(FILES)
    manifest = folder.manifest(folder.commit())
    assert {entry.path: entry.sha256 for entry in manifest.files} == {name: sha256(FILES[name]) for name in MODEL_FILES}
    assert {entry.path: entry.size for entry in manifest.files} == {name: len(FILES[name]) for name in MODEL_FILES}
    assert load(manifest.canonical, manifest.digest) == manifest


def without(name: str) -> dict[str, bytes]:
    return {path: data for path, data in FILES.items() if path != name}


@pytest.mark.parametrize(
    ("list_", "reason", "says"),
    [
        (b"", Reason.FILES_REFUSED, "lists 0 files"),
        (b"\n", Reason.FILES_REFUSED, "line 1"),
        (listed(FILES).replace(b"  ", b" "), Reason.FILES_REFUSED, "line 1 of SHA256SUMS is not a hash, two spaces"),
        (listed({"../config.json": b"{}"}), Reason.FILES_REFUSED, "not the plain name"),
        (listed({"a/config.json": b"{}"}), Reason.FILES_REFUSED, "not the plain name"),
        (b"\\" + listed({"con\\\\fig.json": b"{}"}), Reason.FILES_REFUSED, "line 1"),
        (listed({"con\\fig.json": b"{}"}), Reason.FILES_REFUSED, "not the plain name"),
        (listed({"..": b"{}"}), Reason.FILES_REFUSED, "not the plain name"),
        (listed({"a\tb": b"{}"}), Reason.FILES_REFUSED, "not the plain name"),
        (listed({"a\u202eb": b"{}"}), Reason.FILES_REFUSED, "not the plain name"),
        (listed(FILES) * 2, Reason.FILES_REFUSED, "again"),
        (listed(FILES).upper(), Reason.FILES_REFUSED, "is not a hash"),
        (b"\xff\xfe", Reason.FILES_REFUSED, "not UTF-8"),
        (listed({f"{number}.json": b"" for number in range(sums.MAX_FILES + 1)}), Reason.FILES_REFUSED, "501 files"),
        (listed(FILES) + b"#" * sums.MAX_BYTES, Reason.FILES_REFUSED, "more than 65536 bytes"),
        (listed(without("config.json")), Reason.FILES_REFUSED, "no config.json"),
        (listed(without("model.safetensors")), Reason.FILES_REFUSED, "loads no other weights"),
        (listed({**FILES, "Config.json": b"x"}), Reason.FILES_REFUSED, "same name"),
    ],
)
def test_lists_that_are_refused(server: Server, list_: bytes, reason: Reason, says: str) -> None:
    server.hub.folders["tiny"] = {**FILES, "Config.json": b"x", LIST: list_}
    folder = Folder(URI, sha256(list_), server.network)
    fault = fails(lambda: folder.manifest(folder.commit()))
    assert fault.reason == reason
    assert says in fault.message


def test_another_list_than_the_specs_is_not_used_and_its_hash_is_named(server: Server) -> None:
    folder = server.serve(FILES)
    server.hub.folders["tiny"], changed = with_list({**FILES, "config.json": b"{ }"})
    fault = fails(folder.commit)
    assert fault.reason == Reason.MANIFEST_MISMATCH
    assert changed in fault.message and folder.sha256 in fault.message


@pytest.mark.parametrize(
    ("fault", "reason", "says"),
    [
        (Fault(LIST, status=404), Reason.MANIFEST_NOT_FOUND, "sha256sum * > SHA256SUMS"),
        (Fault(LIST, status=403), Reason.MANIFEST_NOT_FOUND, "status 403"),
        (Fault(LIST, status=500), Reason.HUB_FAILED, "status 500"),
        (Fault(LIST, status=429, headers={"Retry-After": "77"}), Reason.RATE_LIMITED, "in 77 s"),
        (Fault("model.safetensors", status=404, method="HEAD"), Reason.HUB_FAILED, "status 404 for model.safetensors"),
        (Fault(LIST, cut_after=3), Reason.HUB_UNREACHABLE, "ended the connection"),
    ],
)
def test_what_a_server_answers_has_a_reason(server: Server, fault: Fault, reason: Reason, says: str) -> None:
    folder = server.serve(FILES)
    server.hub.faults.append(fault)
    found = fails(lambda: folder.manifest(folder.commit()))
    assert (found.reason, found.retry_seconds) == (reason, 77 if reason == Reason.RATE_LIMITED else None)
    assert says in found.message


# --- who may be asked ----------------------------------------------------------------------------------------------------


def test_a_host_that_is_not_listed_is_not_even_resolved(server: Server) -> None:
    def never(host: str, port: int) -> list[str]:
        raise AssertionError(host)

    for hosts in ((), (OTHER,), (f"{HOST}:8443",), (f"www.{HOST}",)):
        folder = replace(server.serve(FILES), network=replace(server.network, hosts=hosts, resolve=never))
        fault = fails(folder.commit)
        assert fault.reason == Reason.HOST_NOT_ALLOWED
        assert f"add it to the chart's value uris.hosts (allowed now: {', '.join(hosts) or 'none'})" in fault.message
    listed_with_port = replace(server.network, hosts=(f"{HOST}:443",))
    assert replace(server.serve(FILES), network=listed_with_port).commit()


NEVER = (
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.9.9.9",
    "169.254.169.254",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::10.0.0.1",
    "::ffff:0:10.0.0.1",
    "100::1",
    "4000::1",
    "5f00::1",
    "fe00::1",
    "fe80::1",
    "fe80::1%en0",
    "febf::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0.1.2.3",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "2001:0:c629:4::80ff:fffe",
    "2002:7f00:1::",
    "2002:e000:1::",
    "nonsense",
)
PRIVATE = (
    "10.1.2.3",
    "100.64.0.1",
    "100.127.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "fc00::1",
    "fd00::1",
    "fec0::1",
    "feff::1%en0",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "3fff::1",
    "::ffff:10.0.0.1",
    "::ffff:100.64.0.1",
    "64:ff9b::a00:1",
    "64:ff9b::6440:1",
    "64:ff9b:1::c629:4",
    # The last four bytes look like a public address, but the site may have put another one before them.
    "64:ff9b:1:ac10:c6:2900:400:0",
    # Teredo of a public address.
    "2001:0:c629:4::39d6:fffb",
    "2002:a00:1::",
)
GLOBAL = (
    PUBLIC,
    "100.63.255.255",
    "100.128.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "223.255.255.255",
    "2001:503:ba3e::2:30",
    "2003::1",
    "2606:4700::1111",
    "::ffff:198.41.0.4",
    "64:ff9b::c629:4",
    "2002:c629:4::",
)


@pytest.mark.parametrize("address", [*NEVER, *PRIVATE, *GLOBAL])
def test_which_addresses_may_be_asked(address: str) -> None:
    assert (refusal(address, private=False) is None) == (address in GLOBAL)
    assert (refusal(address, private=True) is None) == (address not in NEVER)


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1"])
def test_one_address_that_may_not_be_asked_is_enough(server: Server, address: str) -> None:
    allowed = replace(server.network, resolve=lambda host, port: [PUBLIC, address])
    fault = fails(replace(server.serve(FILES), network=allowed).commit)
    assert fault.reason == Reason.HOST_NOT_ALLOWED
    assert address in fault.message
    assert server.dialled == []


def test_private_addresses_only_of_hosts_that_may_have_them(server: Server) -> None:
    inside = replace(server.network, resolve=lambda host, port: ["10.1.2.3"])
    assert "uris.privateHosts" in fails(replace(server.serve(FILES), network=inside).commit).message
    for private in ((OTHER,), (f"{HOST}:8443",)):
        other = replace(inside, private_hosts=private)
        assert fails(replace(server.serve(FILES), network=other).commit).reason == Reason.HOST_NOT_ALLOWED
    folder = replace(server.serve(FILES), network=replace(inside, private_hosts=(HOST,)))
    assert folder.commit() == folder.sha256
    assert server.dialled == [("10.1.2.3", 443)]


def test_a_name_that_changes_after_the_check_leads_nowhere_else(server: Server) -> None:
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    rebinding = replace(server.network, resolve=lambda host, port: next(answers))
    folder = replace(server.serve(FILES), network=rebinding)
    assert folder.commit() == folder.sha256
    # Each connection goes to the address that was checked for it; the next answer is checked again.
    assert fails(lambda: folder.manifest(folder.sha256)).reason == Reason.HOST_NOT_ALLOWED
    assert server.dialled == [(PUBLIC, 443)]


def test_the_next_address_is_tried_if_one_does_not_answer(server: Server) -> None:
    def dial(address: str, port: int) -> socket.socket:
        if address == PUBLIC:
            raise ConnectionRefusedError(111, "refused")
        return server.network.dial(address, port)

    two = replace(server.network, resolve=lambda host, port: [PUBLIC, "198.41.0.5"], dial=dial)
    folder = replace(server.serve(FILES), network=two)
    assert folder.commit() == folder.sha256
    assert server.dialled == [("198.41.0.5", 443)]


def test_names_that_cannot_be_resolved_in_time_or_at_all(server: Server) -> None:
    hangs = threading.Event()

    def wait(host: str, port: int) -> list[str]:
        hangs.wait()
        return [PUBLIC]

    def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(8, "nodename nor servname provided")

    for found, says in ((wait, "no answer in 0.05 s"), (unknown, "nodename"), (lambda host, port: [], "no address")):
        slow = replace(server.network, resolve=found, dns_seconds=0.05)
        fault = fails(replace(server.serve(FILES), network=slow).commit)
        assert fault.reason == Reason.HUB_UNREACHABLE
        assert says in fault.message
    hangs.set()


def test_a_certificate_of_an_unknown_authority_or_for_another_name_is_refused(server: Server) -> None:
    unknown = fails(replace(server.serve(FILES), network=replace(server.network, authorities="")).commit)
    assert unknown.reason == Reason.HUB_UNREACHABLE
    assert "uris.certificateAuthorities" in unknown.message
    other = replace(server.network, hosts=("other.example.com",))
    named = fails(replace(server.serve(FILES), uri="https://other.example.com/folders/tiny/", network=other).commit)
    assert "certificate of other.example.com is not trusted" in named.message
    broken = replace(server.network, authorities="-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----")
    assert "is not valid PEM" in fails(replace(server.serve(FILES), network=broken).commit).message


# --- redirects -----------------------------------------------------------------------------------------------------------


def redirect(to: str, path: str = LIST, times: int = 1) -> Fault:
    return Fault(path, times, 302, {"Location": to})


@pytest.mark.parametrize(
    ("location", "reason", "says"),
    [
        ("https://evil.example.com/x", Reason.HOST_NOT_ALLOWED, "from evil.example.com: add it"),
        (f"http://{HOST}/folders/tiny/{LIST}", Reason.HOST_NOT_ALLOWED, "only https"),
        (f"https://user:word@{HOST}/{LIST}", Reason.HOST_NOT_ALLOWED, "without a user"),
        ("file:///etc/passwd", Reason.HOST_NOT_ALLOWED, "only https"),
        ("https://cdn.example.com/x", Reason.HOST_NOT_ALLOWED, "from cdn.example.com: add it"),
        (f"https://{HOST}:x/", Reason.HUB_FAILED, "is not a URL"),
        ("", Reason.HUB_FAILED, "redirects without a target"),
    ],
)
def test_redirects_that_are_not_followed(server: Server, location: str, reason: Reason, says: str) -> None:
    folder = server.serve(FILES)
    server.hub.faults.append(redirect(location))
    fault = fails(folder.commit)
    assert fault.reason == reason
    assert says in fault.message and "word" not in fault.message
    assert len(server.dialled) == 1


def test_a_redirect_to_an_allowed_host_is_followed_and_its_addresses_are_checked(server: Server) -> None:
    folder = server.serve(FILES)
    server.hub.faults.append(redirect(f"https://{OTHER}/folders/tiny/{LIST}?signature=a%2Fb"))
    assert folder.commit() == folder.sha256
    assert server.dialled == [(PUBLIC, 443), (PUBLIC, 8443)]
    inside = replace(server.network, resolve=lambda host, port: [PUBLIC if port == 443 else "10.0.0.1"])
    server.hub.faults.append(redirect(f"https://{OTHER}/folders/tiny/{LIST}"))
    assert "has the address 10.0.0.1" in fails(replace(server.serve(FILES), network=inside).commit).message


def test_redirects_end(server: Server) -> None:
    folder = server.serve(FILES)
    server.hub.faults.append(redirect(f"/folders/tiny/{LIST}", times=MAX_REDIRECTS))
    assert folder.commit() == folder.sha256
    server.hub.faults.append(redirect(f"/folders/tiny/{LIST}", times=99))
    server.hub.requests.clear()
    fault = fails(server.serve(FILES).commit)
    assert "more than 3 redirects" in fault.message
    assert len(server.hub.requests) == MAX_REDIRECTS + 1


# --- downloading ---------------------------------------------------------------------------------------------------------


class Mac:
    """A model store with an agent that takes staged files over."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "store")
        self.store.prepare()
        self.staging = self.store.layout.staged("download")
        self.staging.mkdir()

    def download(self, folder: Folder, manifest: Manifest) -> str:
        with self.agent(manifest):
            return Download(folder, manifest, self.store, self.staging).run().reason

    @contextlib.contextmanager
    def agent(self, wanted: Manifest) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.05):
                for entry in self.store.missing(wanted):
                    staged = self.staging / entry.blob
                    if not staged.exists():
                        continue
                    try:
                        self.store.adopt(wanted.repository, entry, staged)
                    except WrongBytes:
                        staged.unlink(missing_ok=True)
                    except (Busy, FileNotFoundError):
                        continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path)


def test_a_download_brings_the_files_of_the_model(server: Server, mac: Mac) -> None:
    folder = server.serve(FILES)
    manifest = folder.manifest(folder.commit())
    assert mac.download(folder, manifest) == Reason.FETCHED
    found = mac.store.publish(manifest)
    assert read(found) == {name: FILES[name] for name in MODEL_FILES}
    assert found.parent.parent.name == f"models--{folder.repository.replace('/', '--')}"
    before = len(server.hub.requests)
    assert mac.download(folder, manifest) == Reason.FETCHED
    assert len(server.hub.requests) == before


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_is_continued(server: Server, mac: Mac, ranges: bool) -> None:
    folder = server.serve(FILES)
    manifest = folder.manifest(folder.commit())
    server.hub.ranges = ranges
    server.hub.faults.append(Fault("model.safetensors", 1, cut_after=5_000_000, method="GET"))
    server.hub.requests.clear()
    assert mac.download(folder, manifest) == Reason.FETCHED
    first, second = (text for method, text in server.asked("model.safetensors"))
    assert first is None
    assert second is not None and 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 5_000_000


def test_wrong_bytes_are_refused_and_fetched_again(server: Server, mac: Mac) -> None:
    folder = server.serve(FILES)
    manifest = folder.manifest(folder.commit())
    server.hub.faults.append(Fault("model.safetensors", 1, wrong=b"??", method="GET"))
    fault = fails(lambda: mac.download(folder, manifest))
    assert fault.reason == Reason.WRONG_BYTES
    assert "model.safetensors" in fault.message
    assert mac.download(folder, manifest) == Reason.FETCHED


def test_a_file_that_became_longer_or_shorter_is_refused(server: Server, mac: Mac) -> None:
    folder = server.serve(FILES)
    manifest = folder.manifest(folder.commit())
    for data in (LARGE + b"x", LARGE[:-1]):
        server.hub.folders["tiny"]["model.safetensors"] = data
        assert fails(lambda: mac.download(folder, manifest)).reason == Reason.WRONG_BYTES


# --- the settings of a pod -----------------------------------------------------------------------------------------------


def test_a_pod_asks_only_whom_its_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (URI_HOSTS, URI_PRIVATE_HOSTS, URI_AUTHORITIES):
        monkeypatch.delenv(name, raising=False)
    assert Folder(URI, "a" * 64).network.hosts == ()
    monkeypatch.setenv(URI_HOSTS, f"{HOST} {OTHER}")
    monkeypatch.setenv(URI_PRIVATE_HOSTS, OTHER)
    monkeypatch.setenv(URI_AUTHORITIES, "PEM")
    found = Folder(URI, "a" * 64).network
    assert (found.hosts, found.private_hosts, found.authorities) == ((HOST, OTHER), (OTHER,), "PEM")
    assert (found.resolve, found.dial) == (network.resolve, network.dial)


@pytest.mark.parametrize("uri", ["http://a.b/", "https://u:p@a.b/", "https://a.b/x", "https://a.b/x/?q", "https://a.b/../x/"])
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="uri must have the form"):
        Folder(uri, "a" * 64)


def test_the_context_checks_names(server: Server) -> None:
    context = server.network._context()
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
