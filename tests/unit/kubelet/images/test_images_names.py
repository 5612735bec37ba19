"""Names, credentials, manifests and what is deleted: the decisions about images, without a registry."""

import base64
import json
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from thunderfleet_kubelet.images import doomed
from thunderfleet_kubelet.images.doomed import Kept
from thunderfleet_kubelet.images.errors import PullError
from thunderfleet_kubelet.images.registry import challenge, manifest, secrets
from thunderfleet_kubelet.images.registry.challenge import Challenge
from thunderfleet_kubelet.images.registry.reference import Reference, is_allowed, is_named, parse
from thunderfleet_kubelet.images.registry.secrets import Credential
from yarl import URL

Json = dict[str, Any]
DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("thunderfleet/thunderfleet:0.1.0", None),
        ("python", None),
        ("ghcr.io/acme/app:1", Reference("ghcr.io", "acme/app", "1")),
        ("ghcr.io/acme/app", Reference("ghcr.io", "acme/app", "latest")),
        ("localhost/app:1", Reference("localhost", "app", "1")),
        ("127.0.0.1:5000/a/b/c:x", Reference("127.0.0.1:5000", "a/b/c", "x")),
        ("[::1]:5000/a:x", Reference("[::1]:5000", "a", "x")),
        (f"r.example/a@{DIGEST}", Reference("r.example", "a", "", DIGEST)),
        (f"r.example/a:1@{DIGEST}", Reference("r.example", "a", "1", DIGEST)),
        ("docker.io/python:3", Reference("docker.io", "library/python", "3")),
        ("index.docker.io/acme/app:3", Reference("docker.io", "acme/app", "3")),
    ],
)
def test_a_name_with_a_host_names_a_registry(text: str, wanted: Reference | None) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "r.example/UPPER:1",
        "r.example/a:",
        "r.example/a:-x",
        "r.example/../a:1",
        "r.example/a@sha256:xyz",
        "r.example/a@md5:" + "ab" * 16,
        "r.example/a b:1",
        "r.exa mple/a:1",
        "user@r.example/a:1",
        "r.example/" + "a" * 300,
        "r.example//a:1",
        "r.example/a?x=1",
    ],
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


@given(some.text(max_size=80))
def test_a_name_is_read_or_refused_and_reads_the_same_again(text: str) -> None:
    try:
        found = parse(f"r.example/{text}")
    except ValueError:
        return
    assert found is not None
    assert parse(str(found)) == Reference(found.registry, found.repository, "" if found.digest else found.tag, found.digest)


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (["*"], True),
        ([], False),
        (["ghcr.io"], True),
        (["ghcr.io/acme"], True),
        (["ghcr.io/acme/app"], True),
        (["ghcr.io/ac"], False),
        (["*.ghcr.io"], False),
        (["*.io"], True),
        (["ghcr.io:5000"], False),
        (["evilghcr.io"], False),
    ],
)
def test_allowed_registries(patterns: list[str], wanted: bool) -> None:
    assert is_allowed(Reference("ghcr.io", "acme/app", "1"), patterns) is wanted


def entry(user: str, password: str) -> Json:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_the_most_specific_credentials_come_first_and_those_of_other_registries_never() -> None:
    data = {
        ".dockerconfigjson": json.dumps(
            {
                "auths": {
                    "ghcr.io": entry("all", "1"),
                    "ghcr.io/acme": entry("acme", "2"),
                    "ghcr.io/other": entry("other", "3"),
                    "https://index.docker.io/v1/": entry("hub", "4"),
                    "*": entry("everyone", "5"),
                    "ghcr.io.evil.example": entry("evil", "6"),
                    "broken": {"auth": "%%%"},
                    "nothing": None,
                }
            }
        ).encode()
    }
    found = secrets.credentials([{"x": b"y"}, {".dockerconfigjson": b"{"}, data], Reference("ghcr.io", "acme/app", "1"))
    assert [(one.user, one.password) for one in found] == [("acme", "2"), ("all", "1")]
    hub = secrets.credentials([data], Reference("docker.io", "library/python", "1"))
    assert [one.user for one in hub] == ["hub"]
    old = {".dockercfg": json.dumps({"ghcr.io": entry("old", "7")}).encode()}
    assert [one.user for one in secrets.credentials([old], Reference("ghcr.io", "a", "1"))] == ["old"]


def test_credentials_are_not_printed() -> None:
    assert "hush" not in repr(Credential("hush", "hush")) + str(Credential("hush", "hush"))


def test_challenges() -> None:
    words = 'Bearer realm="https://auth.example/token",service="r.example",scope="repository:a:pull,push"'
    assert challenge.parse(['Basic realm="x"', words]) == Challenge(
        "bearer", "https://auth.example/token", "r.example", "repository:a:pull,push"
    )
    assert challenge.parse(['Basic realm="x"']) == Challenge("basic", "x")
    assert challenge.parse(["Negotiate", ""]) is None


@given(some.text(max_size=200))
def test_any_challenge_is_read_or_ignored(text: str) -> None:
    challenge.parse([text, f"Bearer {text}", f"Basic {text}"])


@pytest.mark.parametrize("piece", [" ", ", ", ",", "a", "a ", "a=", "a= ", 'a="', 'a="\\', '\\"', "a=b", 'a="b", '])
def test_a_challenge_takes_time_in_proportion_to_its_length(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(*_: object) -> None:
        raise AssertionError("the pattern goes over the text again for each of its characters, which would take hours")

    monkeypatch.setattr(challenge, "MAX_HEADER", 2**20)
    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, 20.0)
    try:
        challenge.parse(["Bearer " + piece * (2**20 // len(piece))])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def platform(system: str, architecture: str) -> Json:
    return {
        "mediaType": manifest.MANIFESTS[0],
        "digest": "sha256:" + architecture.encode().hex().ljust(64, "0"),
        "size": 10,
        "platform": {"os": system, "architecture": architecture},
    }


def test_the_best_platform_of_an_index_is_chosen() -> None:
    index = {"manifests": [platform("linux", "amd64"), platform("darwin", "arm64"), platform("unknown", "unknown")]}
    chosen = manifest.choose(index, [("darwin", "arm64"), ("linux", "amd64")])
    assert chosen.digest == platform("darwin", "arm64")["digest"]
    assert manifest.choose(index, [("linux", "amd64")]).digest == platform("linux", "amd64")["digest"]
    with pytest.raises(PullError, match=r"no image for darwin/amd64 \(there are: darwin/arm64, linux/amd64\)"):
        manifest.choose(index, [("darwin", "amd64")])


def test_what_a_stranger_writes_as_a_platform_is_one_line_of_text_in_messages() -> None:
    stranger = {"os": "linux\nERROR pods\ud800", "architecture": "\x1b[2Jarm64"}
    words = r"linux ERROR pods / \[2Jarm64"
    with pytest.raises(PullError, match=rf"no image for darwin/arm64 \(there are: {words}\)$"):
        manifest.choose({"manifests": [{"platform": stranger}]}, [("darwin", "arm64")])
    with pytest.raises(PullError, match=f"the image is for {words}, and"):
        manifest.check_config(json.dumps(stranger).encode(), 1, [("darwin", "arm64")])


def good() -> Json:
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": DIGEST, "size": 10}
    return {"config": {"mediaType": "x", "digest": DIGEST, "size": 10}, "layers": [layer]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": None}, "at most 128 layers"),
        ({"layers": [good()["layers"][0]] * 129}, "at most 128 layers"),
        ({"layers": [{**good()["layers"][0], "digest": "sha512:" + "a" * 128}]}, "without a sha256 digest"),
        ({"layers": [{**good()["layers"][0], "size": -1}]}, "without a sha256 digest or a size"),
        ({"layers": [{**good()["layers"][0], "size": True}]}, "without a sha256 digest or a size"),
        ({"layers": [{**good()["layers"][0], "size": 2**40}]}, "maxBytes"),
        ({"layers": [{**good()["layers"][0], "mediaType": "application/vnd.in-toto+json"}]}, "not supported"),
        ({"layers": ["x"]}, "not an object"),
        ({"config": {**good()["config"], "size": 2**30}}, "configuration has"),
    ],
)
def test_manifests_are_bounded(change: Json, words: str) -> None:
    assert manifest.parse(good(), 2**30).size == 10
    with pytest.raises(PullError, match=words):
        manifest.parse({**good(), **change}, 2**30)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"[]", "not a JSON object"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (
            json.dumps({"os": "linux", "architecture": "s390x"}).encode(),
            "for linux/s390x, and this machine runs darwin",
        ),
        (json.dumps({"os": "darwin", "architecture": "arm64"}).encode(), "no sha256 digests"),
        (json.dumps({"os": "darwin", "architecture": "arm64", "rootfs": {"diff_ids": [DIGEST] * 2}}).encode(), "2 digests"),
    ],
)
def test_configurations_are_checked(document: bytes, words: str) -> None:
    with pytest.raises(PullError, match=words):
        manifest.check_config(document, 1, [("darwin", "arm64")])


def test_a_manifest_of_another_kind_is_refused() -> None:
    with pytest.raises(PullError, match="are not images"):
        manifest.read(b'{"schemaVersion": 1}', "application/vnd.docker.distribution.manifest.v1+prettyjws")


def test_images_are_deleted_by_last_use_and_never_one_in_use() -> None:
    kept = [Kept("a", 10, 100.0), Kept("b", 10, 50.0), Kept("c", 10, 10.0), Kept("new", 10, 995.0), Kept("future", 10, 5000.0)]
    assert doomed.doomed(kept, {"c"}, 1000.0, 60.0, 15) == ["b", "a"]
    assert doomed.doomed(kept, set(), 1000.0, 60.0, 0) == []
    assert doomed.doomed(kept, set(), 1000.0, 60.0, 1000) == ["c", "b", "a", "future"]


def test_thresholds_of_the_disk() -> None:
    assert doomed.excess(1000, 200, 85, 80) == 0
    assert doomed.excess(1000, 100, 85, 80) == 100
    assert doomed.excess(1000, 0, 100, 80) == 0
    assert doomed.excess(0, 0, 85, 80) == 0


@pytest.mark.parametrize(
    ("patterns", "url", "wanted"),
    [
        (["*"], "https://r.example", False),
        (["r.example"], "https://r.example", True),
        (["R.example"], "https://r.example", True),
        (["r.example/team"], "https://r.example", True),
        (["r.example:443"], "https://r.example", True),
        (["r.example"], "https://r.example:8443", False),
        (["r.example"], "http://r.example:443", False),
        (["r.example:80"], "http://r.example", True),
        (["r.example:8443"], "https://r.example:8443", True),
        (["*.example"], "https://r.example", True),
        (["*.example"], "https://example", False),
        (["*.example"], "https://r.example:8443", False),
        (["*.example:8443"], "https://r.example:8443", True),
        (["*.example"], "https://r.badexample", False),
        (["[fd00::1]:5000"], "https://[fd00::1]:5000", True),
        (["fd00::1"], "https://[fd00::1]", False),
        ([], "https://r.example", False),
    ],
)
def test_hosts_that_the_configuration_names(patterns: list[str], url: str, wanted: bool) -> None:
    parts = URL(url)
    assert is_named(parts.host or "", parts.port, parts.scheme, patterns) is wanted
