"""The support archive: what is redacted, what is collected, its limits, and partial failures."""

import base64
import json
import stat
import tarfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_cli.cli import main
from thunderfleet_cli.support import command
from thunderfleet_cli.support.archive import Archive
from thunderfleet_cli.support.command import ARCHIVE_BYTES, write_archive
from thunderfleet_cli.support.redact import REDACTED, is_secret_name, redact_object, redact_text
from thunderfleet_cli.support.requests import OBJECTS, LogRequest, pod_logs, trimmed
from thunderfleet_lib.kube import Kube
from thunderfleet_lib.kube.client import Page
from thunderfleet_localcluster import paths
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.network.ports import claim

SECRET = "hunter2hunter2hunter2"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\nAbCd==\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"before {PEM} after", "before [redacted] after"),
        (f"before {PEM[:40]}", "before [redacted]"),
        (json.dumps({"a": PEM}), '{"a": "[redacted]"}'),
        ("ca: " + base64.b64encode(PEM.encode()).decode(), "ca: [redacted]"),
        (f"jwt {JWT} end", "jwt [redacted] end"),
        ("join --token abcdef.0123456789abcdef --ca-hash", "join --token [redacted] --ca-hash"),
        ("used abcdef.0123456789abcdef", "used [redacted]"),
        ("hf_abcdefghijklmnopqrstu", "[redacted]"),
        ("sk-abcdefghijklmnopqrstu", "[redacted]"),
        ("ghp_abcdefghijklmnopqrstu", "[redacted]"),
        (f"Authorization: Bearer {SECRET}", "Authorization: [redacted]"),
        (f"authorization={SECRET}", "authorization=[redacted]"),
        (f'{{"Authorization": "Basic {SECRET}"}}', '{"Authorization": "[redacted]"}'),
        (f"sent bearer {SECRET}", "sent bearer [redacted]"),
        (f"http://thunderfleet:{SECRET}@127.0.0.1:80/x", "http://[redacted]@127.0.0.1:80/x"),
        (f"PASSWORD={SECRET} x", "PASSWORD=[redacted] x"),
        (f"db_password: '{SECRET}'", "db_password: '[redacted]'"),
        (f'"client-key-data": "{SECRET}"', '"client-key-data": "[redacted]"'),
        (f'{{\\"apiKey\\": \\"{SECRET}\\"}}', '{\\"apiKey\\": \\"[redacted]\\"}'),
        (f"--api-key {SECRET} --port 1", "--api-key [redacted] --port 1"),
        (f"--api-key={SECRET}", "--api-key=[redacted]"),
        (f'password="{SECRET} and more" x', 'password="[redacted]" x'),
        (f"https://h/m?X-Amz-Signature={SECRET}&sig={SECRET}&x=1", "https://h/m?X-Amz-Signature=[redacted]&sig=[redacted]&x=1"),
    ],
)
def test_secrets_in_texts(text: str, expected: str) -> None:
    assert redact_text(text) == expected
    assert redact_text(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "tokensPerSecond: 12.5, contextTokens=2048, max_tokens: 48",
        "192.168.64.11 studio-1.tb1--studio-2.tb1 10.64.1.1:20000",
        "thunderfleet/tiny-qwen2:0.1.0 sha256:" + "0" * 64,
        "http://192.168.64.11:20000/v1/chat/completions",
        "key=1 monkey: 2",
        "secretName unknown",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert redact_text(text) == text


@given(st.text(max_size=300))
def test_any_text_can_be_redacted_twice(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once


@pytest.mark.parametrize(
    "piece", ["a", "token", "--token", "-", "eyJabcdefgh-", "token ", "password:", "key='", "://a", "bearer ", "LS0tLS1CRUdJTi"]
)
def test_a_long_text_takes_time_in_proportion_to_its_length(piece: str) -> None:
    """Any user can give a pod an annotation of 256 KiB, and a pod can write a line of a megabyte to its log."""
    # With a pattern that goes over a text again for each of its characters, this would take hours.
    redact_text(piece * (256 * 1024 // len(piece)))


@pytest.mark.parametrize("name", ["to\u212aen", "pa\u017f\u017fword", "\u017fecret", "credent\u0131al", "\u212aey_data"])
def test_letters_that_are_equal_without_regard_to_case_are_part_of_names(name: str) -> None:
    assert redact_text(f"{name}={SECRET}") == f"{name}={REDACTED}"


def test_secrets_of_command_lines_and_headers() -> None:
    words = ["serve", "--api-key", SECRET, "--port", "1", "--no-token", "--debug"]
    headers = [{"name": "Authorization", "value": f"Token {SECRET}"}, {"name": "Cookie", "value": f"session={SECRET}"}]
    assert redact_object({"command": words, "httpHeaders": headers}) == {
        "command": ["serve", "--api-key", REDACTED, "--port", "1", "--no-token", "--debug"],
        "httpHeaders": [{"name": "Authorization", "value": REDACTED}, {"name": "Cookie", "value": REDACTED}],
    }


@pytest.mark.parametrize("name", ["HF_TOKEN", "API_KEY", "apiKey", "GITHUB_PAT", "DB_PASSWD", "secret", "X_AUTH", "KEY"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["PATH", "contextTokens", "KEYBOARD", "MONKEY", "AUTHOR", "value"])
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


def test_secrets_in_objects() -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "note": f"Bearer {SECRET}", "size": "3"}
    pod = {
        "metadata": {"name": "a", "managedFields": [{"manager": "x"}], "annotations": annotations},
        "spec": {
            "containers": [
                {
                    "args": ["--token", "abcdef.0123456789abcdef"],
                    "env": [
                        {"name": "HF_TOKEN", "value": SECRET},
                        {"name": "MODE", "value": "fast"},
                        {"name": "A_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
                    ],
                }
            ],
            "volumes": [{"secret": {"secretName": "keys"}}],
            "password": SECRET,
            "contextTokens": 2048,
        },
    }
    assert redact_object(pod) == {
        "metadata": {"name": "a", "annotations": {"note": f"Bearer {REDACTED}", "size": "3"}},
        "spec": {
            "containers": [
                {
                    "args": ["--token", REDACTED],
                    "env": [
                        {"name": "HF_TOKEN", "value": REDACTED},
                        {"name": "MODE", "value": "fast"},
                        {"name": "A_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
                    ],
                }
            ],
            "volumes": [{"secret": {"secretName": "keys"}}],
            "password": REDACTED,
            "contextTokens": 2048,
        },
    }


def test_secrets_are_never_read() -> None:
    assert len({item.name for item in OBJECTS}) == len(OBJECTS)
    assert not [item for item in OBJECTS if "secret" in item.path]
    (plans,) = [item for item in OBJECTS if "configmaps" in item.path]
    assert plans.selector == "app.kubernetes.io/managed-by=thunderfleet-operator,!thunderfleet.io/routes"


def pod(name: str, labels: dict[str, str], **restarts: int) -> dict[str, Any]:
    """A pod with containers and how often each was restarted."""
    states = [{"name": container, "restartCount": count} for container, count in restarts.items()]
    status = {"initContainerStatuses": states[:1], "containerStatuses": states[1:]}
    return {"metadata": {"namespace": "n", "name": name, "labels": labels}, "status": status}


def test_logs_of_our_pods_only_and_of_restarted_containers_also_before_the_restart() -> None:
    pods = [
        pod("operator", {"app.kubernetes.io/name": "thunderfleet"}, init=0, main=2),
        pod("rank", {"app.kubernetes.io/managed-by": "thunderfleet-operator"}, init=1),
        pod("stranger", {"app.kubernetes.io/name": "other"}, init=0),
        {"metadata": {"namespace": "n", "name": "bare"}},
        {"metadata": {"namespace": "n", "name": "new", "labels": {"app.kubernetes.io/name": "thunderfleet"}}},
    ]
    assert pod_logs(pods) == [
        LogRequest("n", "operator", "init", False),
        LogRequest("n", "operator", "main", False),
        LogRequest("n", "operator", "main", True),
        LogRequest("n", "rank", "init", False),
        LogRequest("n", "rank", "init", True),
    ]
    assert LogRequest("n", "rank", "init", True).name == "n/rank/init.previous.log"
    assert LogRequest("n", "rank", "init", False).name == "n/rank/init.log"
    assert LogRequest("n", "rank", "init", False).path == "/api/v1/namespaces/n/pods/rank/log"


def test_schemas_and_certificates_are_left_out() -> None:
    crd = {"kind": "CustomResourceDefinition", "spec": {"group": "g", "versions": [{"name": "v1", "schema": {"a": 1}}]}}
    assert trimmed(crd) == {"kind": "CustomResourceDefinition", "spec": {"group": "g", "versions": [{"name": "v1"}]}}
    csr = {"spec": {"request": "x", "signerName": "s"}, "status": {"certificate": "y", "conditions": []}}
    assert trimmed(csr) == {"spec": {"signerName": "s"}, "status": {"conditions": []}}
    assert trimmed({"spec": {"request": "x"}}) == {"spec": {"request": "x"}}


def files(path: Path) -> dict[str, str]:
    """Texts in an archive by name, without its top folder."""
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            assert stream is not None and member.mode == 0o600
            folder, _, name = member.name.partition("/")
            assert folder == path.name.removesuffix(".tar.gz")
            found[name] = stream.read().decode()
        return found


def test_an_archive_has_a_limit_and_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with Archive(path, 1 << 20) as archive:
        archive.add("first", "x" * (1 << 20))
        archive.add("second", "y")
        archive.add_problems()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = files(path)
    assert list(found) == ["first", "problems.txt"]
    assert found["problems.txt"] == "second: the archive is limited to 1 MiB\n"
    with pytest.raises(LocalClusterError, match=r"a\.tar\.gz exists; name another file with --output") as caught:
        Archive(path, 1)
    assert caught.value.usage


def test_a_failed_archive_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Archive(tmp_path / "a.tar.gz", 10):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def kubeconfig(folder: Path, port: int) -> Path:
    """A kubeconfig for an API server on this machine."""
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": SECRET}}
    path.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "x"}))
    return path


def test_an_unreachable_api_server_is_a_problem_in_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = claim(1)
    output = tmp_path / "s.tar.gz"
    assert main(["support", "--kubeconfig", str(kubeconfig(tmp_path, port)), "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{output}\n" and "not collected: objects/nodes.json: " in said.err
    found = files(output)
    assert sorted(found) == ["README.txt", "problems.txt", "versions.json"]
    lines = found["problems.txt"].splitlines()
    assert {line.partition(":")[0] for line in lines} == {
        "versions.json",
        *(f"objects/{item.name}.json" for item in OBJECTS),
    }
    assert all("cannot reach" in line for line in lines)
    assert json.loads(found["versions.json"])["thunderfleet"]
    assert SECRET not in "".join(found.values())


async def collected(tmp_path: Path, pages: Mapping[str, Iterable[list[dict[str, Any]]]]) -> tuple[dict[str, str], list[str]]:
    """The files, and the logs that were requested, of a cluster with these pages of objects, by the name of their kind."""
    logs: list[str] = []
    by_path = {item.path: pages.get(item.name, ()) for item in OBJECTS}

    class Api:
        host = "https://api"

        async def pages(self, path: str, query: Mapping[str, object]) -> AsyncIterator[Page]:
            for items in by_path[path]:
                yield Page(items, "1")

        async def request(self, method: str, path: str, **how: object) -> dict[str, Any]:
            if path.endswith("/log"):
                logs.append(path)
            return {"text": "said"}

    with Archive(tmp_path / "s.tar.gz", ARCHIVE_BYTES) as archive:
        await command._Collector(archive, cast(Kube, Api()), lambda text: None).run()
        archive.add_problems()
    return files(archive.path), logs


async def test_of_large_objects_only_as_many_are_held_as_go_into_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can create thousands of pods of a megabyte each."""
    monkeypatch.setattr(command, "OBJECT_BYTES", 2**20)

    class Large(dict[str, Any]):
        """A dict that can be referenced weakly."""

    seen: list[ref[Large]] = []
    most = 0

    def pages() -> Iterator[list[dict[str, Any]]]:
        nonlocal most
        for number in range(60):
            items = [Large(pod(f"p{number}-{n}", {"x": "x" * 2**16})) for n in range(2)]
            seen.extend(ref(item) for item in items)
            most = max(most, sum(one() is not None for one in seen))
            yield [*items]
        yield [pod("operator", {"app.kubernetes.io/name": "thunderfleet"}, init=0)]

    found, logs = await collected(tmp_path, {"pods": pages(), "nodes": [[pod("a", {})], [pod("b", {})]]})
    held = json.loads(found["objects/pods.json"])
    assert 10 <= len(held) <= 16 and len(found["objects/pods.json"]) <= 2**20
    assert f"objects/pods.json: only the first {len(held)} objects" in found["problems.txt"]
    assert most <= 6, "pages behind the one that is read stay in memory"
    assert [item["metadata"]["name"] for item in json.loads(found["objects/nodes.json"])] == ["a", "b"]
    assert json.loads(found["objects/leases.json"]) == []
    assert logs == ["/api/v1/namespaces/n/pods/operator/log"], "the pods of others must not hide ours"


async def test_more_logs_than_are_collected_are_not_even_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MAX_LOGS", 3)
    ours = {"app.kubernetes.io/name": "thunderfleet"}
    found, logs = await collected(tmp_path, {"pods": [[pod(f"p{n}", ours, init=0, main=1)] for n in range(4)]})
    assert len(logs) == 3
    assert "logs/pods: only the first 3 logs" in found["problems.txt"]


@pytest.mark.parametrize("by", ["KUBECONFIG", "~/.kube/config"])
def test_without_a_local_cluster_the_cluster_is_that_of_kubectl(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / ".kube"
    home.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home.parent)
    monkeypatch.setattr(paths, "state_folder", lambda: tmp_path / "clusters")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (port,) = claim(1)
    file = kubeconfig(home, port)
    if by == "KUBECONFIG":
        monkeypatch.setenv("KUBECONFIG", str(file))
    else:
        file.rename(home / "config")
    output = tmp_path / "s.tar.gz"
    _, problems = write_archive(output, None, None, "thunderfleet", None, lambda text: None)
    assert any("objects/nodes.json: " in problem and str(port) in problem for problem in problems), problems
    with pytest.raises(LocalClusterError, match="no cluster is running"):
        write_archive(output, None, None, "demo", None, lambda text: None)


def test_without_a_cluster_the_archive_names_the_way_to_another_one(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"no cluster is running in .*--kubeconfig FILE"):
        write_archive(tmp_path / "s.tar.gz", None, None, "none", tmp_path / "c", lambda text: None)
    with pytest.raises(LocalClusterError, match="cannot use kubeconfig") as caught:
        write_archive(tmp_path / "s.tar.gz", tmp_path / "missing", None, "none", None, lambda text: None)
    assert caught.value.usage
    assert list(tmp_path.iterdir()) == []
