"""Keys, ports, queue, cache, quantities and command line."""

import asyncio
import base64
import hashlib
import re
import ssl
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME
from thunderfleet_lib.net import tls
from thunderfleet_operator.act.keys import group_keys, secret_name, unsigned_group_keys
from thunderfleet_operator.act.operator_key import operator_keys
from thunderfleet_operator.cli import main
from thunderfleet_operator.decide.group.lifecycle import backoff_seconds
from thunderfleet_operator.decide.placing.ports import NoPortsLeft, PortRange, PortSettings, allocate
from thunderfleet_operator.observe.objects.pods import RankPorts
from thunderfleet_operator.observe.objects.proofs import Keyring, Proof, Purpose
from thunderfleet_operator.watch.cache import PODS, Store
from thunderfleet_operator.watch.workqueue import WorkQueue

from tests.unit.operator.values import plan

MASTER = b"m" * 32


# --- keys ---


def test_keys_are_derived_and_differ_by_placement() -> None:
    assert group_keys(MASTER, plan()) == group_keys(MASTER, plan())
    made = {
        part
        for master in (MASTER, b"n" * 32)
        for uid in "ab"
        for group in (0, 1)
        for epoch in (1, 2)
        for namespace in ("ns", "other")
        for name in ("md", "md2")
        for placed in [plan(epoch, uid=uid, index=group, namespace=namespace, deployment=name)]
        for part in (group_keys(master, placed).key, secret_name(master, placed))
    }
    assert len(made) == 2 * 64
    with pytest.raises(ValueError, match="at least 32"):
        group_keys(b"short", plan())


def test_a_certificate_tells_strangers_nothing_of_what_keys_are_derived_from() -> None:
    placed = plan(uid="3b1f6c1e-secret", namespace="prod", deployment="chat")
    found = x509.load_pem_x509_certificate(group_keys(MASTER, placed).certificate.encode())
    assert found.subject == found.issuer
    assert not [part for part in (placed.uid, "prod", "chat") if part in found.subject.rfc4514_string()]


def test_groups_of_versions_that_signed_nothing_keep_their_keys() -> None:
    pair = unsigned_group_keys(MASTER, plan(3, uid="3b1f6c1e-0000-4000-8000-000000000001", index=2))
    made = hashlib.sha256((pair.certificate + pair.key).encode()).hexdigest()
    assert made == "a1b475e4b156bc0c12864ecdfce732ac651636d98fb9d7db847cfdc81c994e2a", "what the version before derived"


class Secrets:
    """The operator's Secret on an API server."""

    def __init__(self, **data: bytes) -> None:
        self.item = {"data": {name: base64.b64encode(key).decode() for name, key in data.items()}} if data else None

    async def get_or_none(self, path: str) -> Any:
        assert path == "/api/v1/namespaces/ns/secrets/thunderfleet-operator-key"
        return self.item

    async def create(self, path: str, body: Any) -> Any:
        assert path == "/api/v1/namespaces/ns/secrets" and body["immutable"] and self.item is None
        self.item = body
        return body


async def test_the_first_operator_makes_a_key_and_all_others_read_it() -> None:
    secrets: Any = Secrets()
    first = await operator_keys(secrets, "ns", Keyring())
    assert len(first.keys) == 1 and len(first.newest) == 32
    assert (await operator_keys(secrets, "ns", Keyring())).keys == first.keys


async def test_earlier_keys_stay_and_a_running_operator_loses_none() -> None:
    new, old, older = b"n" * 32, b"o" * 32, b"p" * 32
    secrets: Any = Secrets(**{"previous-2": older, "key": new, "previous-1": old})
    known = await operator_keys(secrets, "ns", Keyring(old))
    assert known.newest == new and known.keys == (new, old, older) and known.oldest == older
    secrets.item = None
    again = await operator_keys(secrets, "ns", known)
    assert again.newest not in known.keys and again.keys[1:] == known.keys
    assert (await operator_keys(secrets, "ns", Keyring())).keys == again.keys, "and neither does the next one"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"other": b"n" * 32}, "has no field 'key': add it with 32 random bytes, and keep the others. Then restart"),
        ({"key": b"short"}, "in 'key': restore the field from a backup, or write 32 random bytes to it, and keep the others"),
        (
            {"key": b"n" * 32, "previous-1": b""},
            "in 'previous-1': restore the field from a backup, or remove it, and keep the others; groups whose key is missing",
        ),
        (
            {"key": b"n" * 32, **{f"previous-{number}": bytes([number]) * 32 for number in range(16)}},
            "has 17 fields, at most 16 are allowed: remove the oldest keys; groups whose key is missing get OperatorKeyLost",
        ),
    ],
    ids=["no key", "a short key", "an empty earlier key", "too many"],
)
async def test_a_secret_without_keys_is_refused_with_a_sentence(data: dict[str, bytes], says: str) -> None:
    secrets: Any = Secrets(**data)
    with pytest.raises(ValueError, match=f"^Secret ns/thunderfleet-operator-key .*{re.escape(says)}"):
        await operator_keys(secrets, "ns", Keyring())
    secrets.item = {"data": {"key": "no base64!"}}
    with pytest.raises(ValueError, match="no key of at least 32 bytes in 'key'"):
        await operator_keys(secrets, "ns", Keyring())


def test_parts_of_a_name_cannot_be_moved_into_another_part() -> None:
    one, other = plan(namespace="a/b", deployment="c"), plan(namespace="a", deployment="b/c")
    assert group_keys(MASTER, one) != group_keys(MASTER, other)
    assert group_keys(MASTER, plan(uid='a", 1', index=1)) != group_keys(MASTER, plan(uid="a", index=1))


async def _shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = GROUP_TLS_NAME) -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
    port = listening.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
            try:
                return await reader.read()
            finally:
                writer.close()
    finally:
        listening.close()


def _server(tmp_path: Any, pair: Any) -> ssl.SSLContext:
    (tmp_path / "c").write_text(pair.certificate)
    (tmp_path / "k").write_text(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    context.load_verify_locations(tmp_path / "c")
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


async def test_a_group_trusts_only_its_own_certificate(tmp_path: Any) -> None:
    mine, past = group_keys(MASTER, plan(2)), group_keys(MASTER, plan(1))
    strict = tls.pinned(mine.certificate, mine.key, server=False)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    assert await _shake(_server(tmp_path, mine), strict) == b"hello"
    with pytest.raises(ssl.SSLError):
        await _shake(_server(tmp_path, mine), tls.pinned(past.certificate, past.key, server=False))
    with pytest.raises(ssl.SSLError):
        await _shake(_server(tmp_path, mine), tls.pinned(mine.certificate, mine.key, server=False), "other.example")


# --- ports ---


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from("abc"), st.frozensets(st.integers(20000, 20020), max_size=6)),
    st.integers(0, 4),
)
def test_no_port_twice_on_one_mac(nodes: list[str], taken: dict[str, frozenset[int]], ring: int) -> None:
    found = allocate(PortSettings(PortRange(20000, 20030), PortRange(21000, 21040)), nodes, taken, ring_size=ring)
    held: dict[str, set[int]] = {node: set(taken.get(node, ())) for node in nodes}
    for node, ports in zip(nodes, found, strict=True):
        assert len(ports.ring) == ring and len(ports.all) == 2 + ring
        assert not ports.all & held[node]
        held[node] |= ports.all


def test_over_jaccl_rank_0_alone_has_ring_ports() -> None:
    found = allocate(PortSettings(), ["a", "b", "c"], {}, ring_size=4, ring_ranks=1)
    assert [len(ports.ring) for ports in found] == [4, 0, 0]


def test_ports_are_kept_where_they_are_free() -> None:
    before = {"a": RankPorts(20005, 20007, (21010, 21011)), "b": RankPorts(20005, 20007, (21010, 21011))}
    found = allocate(PortSettings(), ["a", "b"], {"b": frozenset({20005, 21011})}, ring_size=2, kept=before)
    assert found[0] == before["a"]
    assert (found[1].gateway, found[1].control, found[1].ring) == (20000, 20007, (21000, 21001))


def test_no_ports_left_names_the_mac() -> None:
    tight = PortSettings(PortRange(20000, 20001), PortRange(21000, 21002))
    with pytest.raises(NoPortsLeft, match=r"a has no gateway port left in 20000-20001 \(widen .* operator\.ports\)"):
        allocate(tight, ["a"], {"a": frozenset({20000, 20001})}, ring_size=0)
    with pytest.raises(NoPortsLeft, match=r"no block of 2 free ports .*operator\.ringPorts, or lower spec\.bootstrap"):
        allocate(tight, ["a"], {"a": frozenset({21001})}, ring_size=2)
    with pytest.raises(NoPortsLeft, match=r"port 8080 in use already \(unset spec\.server\.port"):
        allocate(tight, ["a"], {"a": frozenset({8080})}, ring_size=0, gateway=8080)


@pytest.mark.parametrize("text", ["x", "1-2", "30000-20000", "20000", "20000-70000"])
def test_a_bad_range_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="a port range"):
        PortRange.parse(text)


# --- queue ---


async def test_a_key_is_handed_out_once_and_again_when_it_changed_meanwhile() -> None:
    queue = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert len(queue) == 2
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "b"
    queue.done("b")
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_user_with_thousands_of_objects_delays_others_by_one_round() -> None:
    queue = WorkQueue()
    for number in range(1000):
        queue.add(f"modeldeployments/crowd/m{number}")
    for key in ("modeldeployments/ns/one", "modeldeployments/ns/two", "nodeprofiles/mac-1", "fleet/all"):
        queue.add(key)
    queue.add("modeldeployments/crowd/m0")
    assert len(queue) == 1004
    assert [await queue.get() for _ in range(6)] == [
        "modeldeployments/crowd/m0",
        "modeldeployments/ns/one",
        "nodeprofiles/mac-1",
        "fleet/all",
        "modeldeployments/crowd/m1",
        "modeldeployments/ns/two",
    ]
    queue.add("modeldeployments/crowd/m999", first=True)
    assert [await queue.get() for _ in range(2)] == ["modeldeployments/crowd/m999", "modeldeployments/crowd/m2"]
    assert len(queue) == 996


async def test_what_changes_during_a_round_gets_one_a_moment_later() -> None:
    queue = WorkQueue(moment=3600)
    queue.changed("a")
    assert await queue.get() == "a", "at once while there is no round"
    queue.changed("a")
    queue.add_after("b", 0.01)
    async with asyncio.timeout(60):
        assert await queue.get() == "b"
    # Due during the round.
    queue.add_after("b", 0.01)
    queue.add("c")
    assert await queue.get() == "c"
    async with asyncio.timeout(60):
        while queue._due:
            queue._promote()
            await asyncio.sleep(0)
    assert len(queue) == 2
    for key in ("a", "b", "c"):
        queue.done(key)
    assert len(queue) == 0 and queue._due.keys() == {"a", "b"}
    queue.add("b")
    assert await queue.get() == "b", "what is added has its round at once"
    queue.changed("b")
    queue.add("b")
    queue.done("b")
    assert await queue.get() == "b" and queue._due.keys() == {"a"}


async def test_the_earliest_wish_counts() -> None:
    queue = WorkQueue()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.01)
    queue.add_after("b", 3600)
    async with asyncio.timeout(60):
        assert await queue.get() == "a"
    queue.done("a")
    queue.add("b")
    assert await queue.get() == "b"
    assert len(queue) == 0


async def test_add_wakes_who_waits() -> None:
    queue = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    async with asyncio.timeout(60):
        assert await waiting == "a"


# --- cache ---


def item(name: str, version: int, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), "managedFields": []}}


def test_an_older_view_never_wins() -> None:
    store = Store(PODS)
    assert store.put(item("a", 5)) and not store.put(item("a", 4)) and not store.put(item("a", 5))
    assert "managedFields" not in store.items["ns/a"]["metadata"]
    assert store.drop(item("a", 6)) and not store.put(item("a", 5))
    assert store.put(item("a", 7, "other")) and not store.drop(item("a", 6))
    assert store.items["ns/a"]["metadata"]["uid"] == "other"


def test_a_list_takes_out_what_is_gone_but_not_what_came_later() -> None:
    store = Store(PODS)
    for name, version in (("old", 3), ("kept", 4), ("new", 12)):
        store.put(item(name, version))
    store.drop(item("dead", 11))
    listed = [item("kept", 4), item("seen", 9), item("dead", 8)]
    assert [store.put(one) for one in listed] == [False, True, False]
    removed = store.keep({"ns/kept", "ns/seen", "ns/dead"}, "10")
    assert {key: one["metadata"]["uid"] for key, one in removed.items()} == {"ns/old": "u"}
    assert set(store.items) == {"ns/kept", "ns/new", "ns/seen"}


# --- quantities ---


def test_backoff_doubles_up_to_its_limit() -> None:
    from thunderfleet_crds.kinds.modeldeployment import Recovery

    recovery = Recovery(backoff_seconds=10, backoff_limit_seconds=300)
    assert [backoff_seconds(recovery, n) for n in (0, 1, 2, 5, 5000)] == [10, 20, 40, 300, 300]


# --- command line ---


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--ports", "20000-21500", "--ring-ports", "21000-22000"]) == 2
    assert "must not overlap" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["run", "--ports", "5"])
    assert left.value.code == 2
    assert "FIRST-LAST" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "20000-20999" in capsys.readouterr().out


def test_signatures_of_earlier_versions_stay_valid() -> None:
    """Written by version 0.1.0: an upgrade must not make running groups look forged."""
    written = "v1.879494929ccdb37e.5a0413b874b822731e8f342532d99a26e433eb25155b68f3ded456094e77af83"
    keys, said = Keyring(b"k" * 32), {"a": 1, "b": ["x", None]}
    assert keys.sign(Purpose.PLAN, said) == written
    assert keys.check(Purpose.PLAN, said, written).proof is Proof.VALID
