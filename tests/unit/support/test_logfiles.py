"""The search for secrets in logs finds them, however they are written."""

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support.api import Api
from tests.support.logfiles import Secrets, records

KEY = b"-----BEGIN PRIVATE KEY-----\n" + b"A1b2" * 16 + b"\n-----END PRIVATE KEY-----\n"
DATA = {"token": b"abcdef.0123456789", "tls.key": KEY, "tls.crt": b"-----BEGIN CERTIFICATE-----\nx", "id": b"short"}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "logs").mkdir()
    return cast(Cluster, SimpleNamespace(logs=tmp_path / "logs", folder=SimpleNamespace(root=tmp_path)))


def secrets(data: dict[str, bytes]) -> Secrets:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    items: list[Any] = [{"metadata": {"namespace": "n", "name": "s"}, "data": encoded}]
    found = Secrets(cast(Api, SimpleNamespace(items=lambda path: items)))
    found.look()
    items.clear()
    found.look()
    return found


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"token abcdef.0123456789!", "token"),
        (b'{"data": "' + base64.b64encode(DATA["token"]) + b'"}', "token"),
        (b"cut: " + b"A1b2" * 16, "tls.key"),
        (b"-----BEGIN CERTIFICATE-----\nx short", None),
    ],
)
def test_a_secret_is_found_in_logs_of_programs_and_containers(cluster: Cluster, text: bytes, key: str | None) -> None:
    place = cluster.folder.root / "machines" / "pods" / "uid" / "logs" / "main"
    place.mkdir(parents=True)
    for path in (cluster.logs / "kubelet.log", place / "0.log"):
        path.write_bytes(b"before\n" + text + b"\n")
        expected = [] if key is None else [f"{path}: n/s.{key}"]
        assert secrets(DATA).found(cluster) == expected
        path.unlink()


def test_records_are_those_of_a_program_in_any_log(cluster: Cluster) -> None:
    line = '{"time": "t", "level": "info", "program": "runner", "message": "x"}'
    (cluster.logs / "kubelet.log").write_text(f"{line}\nplain\n2026-01-01T00:00:00Z stderr F {line}\n")
    assert [entry["message"] for entry in records(cluster, "runner")] == ["x", "x"]
    assert list(records(cluster, "operator")) == []
