"""A snapshot of a real etcd, and an etcd made from it."""

import base64
import contextlib
import http.client
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane import components
from thunderfleet_controlplane.assets import ETCDUTL
from thunderfleet_controlplane.components import Endpoints
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.backup import etcd
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.pki import make_pki
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_localcluster.programs import find_programs

from tests.support.network.ports import claim
from tests.support.waiting import until

CLIENT, PEER = claim(2)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostLayout:
    """Certificates of a control plane; the ports are not those of one that this machine may have."""
    monkeypatch.setattr(etcd, "ETCD_CLIENT", CLIENT)
    monkeypatch.setattr(etcd, "ETCD_PEER", PEER)
    found = HostLayout("0.1.0", data=tmp_path)
    make_pki(found.pki.folder, ["127.0.0.1"], ["127.0.0.1", "localhost"])
    return found


def ask(layout: HostLayout, path: str, body: dict[str, str]) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(layout.pki.folder / "etcd-ca.crt"))
    pair = layout.pki.pair("etcd-client")
    context.load_cert_chain(pair.certificate, pair.key)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", CLIENT, context=context, timeout=60)) as connection:
        connection.request("POST", path, json.dumps(body))
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found


@contextlib.contextmanager
def running(layout: HostLayout, data: Path) -> Iterator[None]:
    at = Endpoints("127.0.0.1", 6443, "127.0.0.1", CLIENT, PEER, 0, 0, loopback=False)
    program = components.etcd(find_programs(lambda event: None) / "etcd", data, layout.pki, at, durable=False)
    process = subprocess.Popen(program.argv, env={**os.environ, **program.env}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: "header" in ask(layout, "/v3/maintenance/status", {}), "etcd answers", retry_on=(OSError,))
        yield
    finally:
        process.terminate()
        process.wait(60)


def word(text: bytes) -> str:
    return base64.b64encode(text).decode()


def test_an_etcd_from_a_snapshot_has_everything_at_a_later_revision(layout: HostLayout, tmp_path: Path) -> None:
    key, value = word(b"/registry/one"), word(os.urandom(200_000))
    with running(layout, layout.etcd):
        put = ask(layout, "/v3/kv/put", {"key": key, "value": value})
        taken = b"".join(etcd.snapshot(layout))
        ask(layout, "/v3/kv/put", {"key": key, "value": word(b"later")})
    (tmp_path / "snapshot").write_bytes(taken)
    program = find_programs(lambda event: None, ETCDUTL) / "etcdutl"
    etcd.make_data(BlockingHost(), program, tmp_path / "snapshot", tmp_path / "restored")
    with running(layout, tmp_path / "restored"):
        found = ask(layout, "/v3/kv/range", {"key": key})
        assert found["kvs"][0]["value"] == value
        # Who watches from a revision of before gets an error, and lists again.
        assert int(found["header"]["revision"]) > etcd.BUMP
        old = ask(layout, "/v3/kv/range", {"key": key, "revision": put["header"]["revision"]})
        assert "compacted" in old["message"]
    (tmp_path / "snapshot").write_bytes(taken[:-1])
    with pytest.raises(InstallError, match="cannot restore etcd's data from the snapshot"):
        etcd.make_data(BlockingHost(), program, tmp_path / "snapshot", tmp_path / "damaged")


def test_an_etcd_that_does_not_run_is_an_error(layout: HostLayout) -> None:
    with pytest.raises(InstallError, match="cannot get a snapshot of etcd"):
        list(etcd.snapshot(layout))
