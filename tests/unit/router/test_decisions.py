"""What the router decides: names, callers, turns, limits, balancing, suspects, and what it reads from odd objects."""

import json
import random
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.routing import MAX_KEYS, KeyLimits
from thunderfleet_crds.kinds.modeldeployment import Memory
from thunderfleet_crds.vocabulary import KeyPriority
from thunderfleet_lib.httpapi.errors import ApiError
from thunderfleet_lib.httpapi.fairqueue import FairQueue
from thunderfleet_router.decide import asked, balance, limits, names, prefixes, suspects
from thunderfleet_router.decide import catalog as catalogs
from thunderfleet_router.decide.callers import Caller, caller
from thunderfleet_router.decide.catalog import Builder, Catalog, Deployment, Outlook, build

from tests.support.routers.routing import KEYS, ROUTING_KEY, Model


def _catalog(*models: Model) -> Catalog:
    return build([model.object() for model in models], [model.document() for model in models], KEYS)


def _caller(catalog: Catalog, key: str = "") -> Caller:
    return caller(catalog, {"Authorization": f"Bearer {key}"} if key else {}, "10.0.0.9")


def _found(catalog: Catalog, name: str | None, key: str = "", aliases: dict[str, str] | None = None) -> str:
    return names.resolve(catalog, _caller(catalog, key), name, aliases or {}).full_name


# --- names ---

A = Model("chat", "a", repository="org/one", keys={"x": "sk-a"}, aliases=["gpt", "big"])
B = Model("chat", "b", repository="org/two", keys={"x": "sk-b"}, aliases=["gpt"])
OPEN = Model("gpt", "c", repository="org/three", aliases=["chat", "big", "free"])


def test_own_namespaces_come_first_and_aliases_never_shadow_names() -> None:
    catalog = _catalog(A, B, OPEN)
    assert _found(catalog, "chat", "sk-a") == "a/chat"
    assert _found(catalog, "chat", "sk-b") == "b/chat"
    # A name, even of another namespace, comes before an alias of the own one.
    assert _found(catalog, "gpt", "sk-a") == "c/gpt"
    assert _found(catalog, "org/one", "sk-a") == _found(catalog, "one", "sk-a") == "a/chat"
    assert _found(catalog, "big", "sk-a") == "a/chat"
    assert _found(catalog, "free") == "c/gpt"


def test_an_alias_of_another_namespace_attracts_no_holder_of_a_key() -> None:
    catalog = _catalog(A, OPEN)
    with pytest.raises(ApiError) as error:
        _found(catalog, "free", "sk-a")
    assert error.value.status == 404 and "free" not in str(error.value).partition("use")[2]


def test_aliases_of_the_fleet_come_after_names_and_own_aliases() -> None:
    catalog, fleet = _catalog(A, B, OPEN), {"big": "c/gpt", "chat": "c/gpt", "best": "b/chat"}
    assert _found(catalog, "big", "sk-a", fleet) == "a/chat"
    assert _found(catalog, "chat", "sk-a", fleet) == "a/chat"
    assert _found(catalog, "best", "sk-b", fleet) == "b/chat"
    # It opens nothing.
    with pytest.raises(ApiError):
        _found(catalog, "best", "sk-a", fleet)


def test_a_name_may_be_left_out_if_there_is_only_one_model() -> None:
    catalog = _catalog(A, B)
    assert _found(catalog, None, "sk-a") == "a/chat"
    with pytest.raises(ApiError) as error:
        _found(_catalog(A, B, OPEN), None, "sk-a")
    assert error.value.status == 400 and "b/chat" not in str(error.value)


def test_one_repository_in_two_deployments_is_the_one_that_serves() -> None:
    loading = Model("first", repository="org/m", urls=["http://127.0.0.1:1"], states=["Loading"])
    ready = Model("second", repository="org/m", urls=["http://127.0.0.1:2"])
    assert _found(_catalog(loading, ready), "org/m") == "default/second"
    with pytest.raises(ApiError) as error:
        _found(_catalog(Model("x", "one"), Model("x", "two")), "x")
    assert error.value.code == "model_ambiguous" and "one/x, two/x" in str(error.value)


ALL_NAMES = ["chat", "gpt", "big", "free", "x", "one", "org/two", "three", "a/chat", "c/gpt", "c/chat", ""]


@given(
    name=st.sampled_from(ALL_NAMES),
    key=st.sampled_from(["", "sk-a", "sk-b", "sk-other"]),
    models=st.lists(st.sampled_from([A, B, OPEN, Model("x", "a"), Model("one", "b", repository="org/one")]), max_size=5),
    aliases=st.dictionaries(st.sampled_from(ALL_NAMES), st.sampled_from(ALL_NAMES), max_size=3),
)
def test_a_name_means_the_same_as_when_all_models_are_examined(
    name: str, key: str, models: list[Model], aliases: dict[str, str]
) -> None:
    catalog = _catalog(*models)
    who = _caller(catalog, key)

    def outcome(find: Callable[[], Deployment | None]) -> object:
        try:
            found = find()
            return found.full_name if found is not None else 404
        except ApiError as error:
            return error.status if error.status in (401, 404) else str(error)

    def examined() -> Deployment | None:
        available = names.usable(catalog, who)
        found = names._find(
            lambda step, wanted: [one for one in available if wanted in names._STEPS[step](one)], who, name, aliases
        )
        if found is None and not who.known and len(available) < len(catalog.deployments):
            raise names.unauthorized()
        return found

    assert outcome(lambda: names.resolve(catalog, who, name, aliases)) == outcome(examined)


@given(st.text(max_size=20), st.sampled_from(["", "sk-a", "sk-b", "sk-other"]))
def test_what_a_caller_gets_is_always_something_it_may_use(name: str, key: str) -> None:
    catalog = _catalog(A, B, OPEN)
    who = _caller(catalog, key)
    try:
        assert who.may_use(names.resolve(catalog, who, name, {"x": "a/chat"}))
    except ApiError as error:
        assert error.status in (400, 401, 404)
    listed = names.listing(catalog, who, {"x": "a/chat", "gpt": "b/chat"})
    for entry in listed:
        assert who.may_use(names.resolve(catalog, who, entry["id"], {"x": "a/chat", "gpt": "b/chat"}))
    assert len({entry["id"] for entry in listed}) == len(listed)


def test_a_name_among_many_models_looks_at_those_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = _catalog(*(Model(f"m{one}", aliases=[f"a{one}"]) for one in range(100)))
    looked: set[str] = set()

    def noted(keys: names.Keys) -> names.Keys:
        def note(deployment: Deployment) -> tuple[str, ...]:
            looked.add(deployment.name)
            return keys(deployment)

        return note

    monkeypatch.setattr(names, "_STEPS", tuple(noted(keys) for keys in names._STEPS))
    assert _found(catalog, "a7") == _found(catalog, "default/m7") == "default/m7"
    assert _found(catalog, "best", aliases={"best": "default/m8"}) == "default/m8"
    assert looked == {"m7", "m8"}


def test_a_list_of_many_models_looks_at_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(keys: names.Keys) -> names.Keys:
        def count(deployment: Deployment) -> tuple[str, ...]:
            nonlocal looked
            looked += 1
            return keys(deployment)

        return count

    monkeypatch.setattr(names, "_STEPS", tuple(counted(keys) for keys in names._STEPS))
    many = [Model(f"m{one}", aliases=[f"a{one}-{number}" for number in range(16)]) for one in range(100)]
    catalog = _catalog(*many)
    assert len(names.listing(catalog, _caller(catalog), {"best": "default/m7"})) == 100 * 17 + 1
    assert looked <= (100 * 18 + 1) * len(names._STEPS)
    looked = 0
    with pytest.raises(ApiError, match="and 80 more"):
        _found(catalog, "nothing")
    assert looked <= names.LISTED * len(names._STEPS)


def test_no_namespace_crowds_others_out_of_the_list_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_LISTED", 10)
    crowd = [Model(f"m{one:02}", "a-crowd", aliases=["one", "two"]) for one in range(40)]
    catalog = _catalog(*crowd, *(Model("chat", f"n{one}") for one in range(3)), Model("own", "z", keys={"a": "sk-z"}))
    assert len(names.listing(catalog, _caller(catalog), {})) == 10
    assert {"n0/chat", "n1/chat", "n2/chat"} < {entry["id"] for entry in names.listing(catalog, _caller(catalog), {})}
    listed = names.listing(catalog, _caller(catalog, "sk-z"), {})
    assert (len(listed), listed[0]["id"]) == (10, "own")
    assert names.listing(catalog, _caller(catalog), {}) != listed


def _crowd(count: int) -> tuple[list[dict[str, Any]], list[str]]:
    """ModelDeployments of one user, all with one Secret of many keys."""
    models = [Model(f"m{one}", "crowd", keys={f"k{key}": f"sk-{key}" for key in range(MAX_KEYS)}) for one in range(count)]
    return [model.object() for model in models], [model.document() for model in models]


def test_a_change_of_one_model_costs_nothing_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, documents = _crowd(20)
    builder = Builder()
    first = builder.build(objects, documents, KEYS)
    reads: list[object] = []

    def counted(real: Callable[..., object], *about: object) -> object:
        reads.append(about)
        return real(*about)

    for name in ("_routes", "_deployment", "_by_digest"):
        monkeypatch.setattr(catalogs, name, partial(counted, getattr(catalogs, name)))
    assert builder.build(objects, documents, KEYS).by_digest == first.by_digest
    assert not reads
    ready = Model("m7", "crowd", urls=["http://127.0.0.1:1"], keys={"k1": "sk-1"})
    changed = [ready.object() if item["metadata"]["name"] == "m7" else item for item in objects]
    found = builder.build(changed, documents, KEYS)
    assert len(reads) == 1 and found.deployments["crowd/m7"].groups
    assert found.accepting(next(iter(found.by_digest)))[7].groups
    # A removed document removes its keys, and a changed routing key all of them.
    assert not builder.build(objects, documents[1:], KEYS).deployments["crowd/m0"].keys
    again = builder.build(objects, documents, {"0" * 16: b"x" * 32})
    assert not again.digest_keys and builder.build(objects, documents, KEYS) == first


def test_many_models_with_the_same_keys_are_listed_in_linear_time() -> None:
    (one,) = _catalog(Model("m", "crowd", keys={f"k{key}": f"sk-{key}" for key in range(64)})).deployments.values()

    def seconds(count: int) -> float:
        crowd = {name: replace(one, name=name, uid=name) for name in map(str, range(count))}
        began = time.thread_time()
        assert len(catalogs._by_digest(crowd)) == 64
        return time.thread_time() - began

    assert min(seconds(3000) for _ in range(3)) < 40 * min(seconds(300) for _ in range(3))


def test_the_holder_of_a_key_of_many_models_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = _catalog(*(Model(f"m{one}", "crowd", keys={"k": "sk-1"}) for one in range(20)))
    first = _caller(catalog, "sk-1")
    assert len(first.grants) == 20 and first is _caller(catalog, "sk-1") is not _caller(catalog, "sk-2")
    for other in range(catalogs.MAX_KEPT + 1):
        catalog.kept(other, object, lambda _: 0)
    assert len(catalog._kept.by_key) <= catalogs.MAX_KEPT and _caller(catalog, "sk-1") == first


def test_few_entries_are_kept_for_many_holders_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may get a listing of thousands."""

    class Entry(dict[str, Any]):
        """Can be referenced weakly."""

    made: list[weakref.ref[Entry]] = []

    def entry(name: str, deployment: Deployment) -> Entry:
        found = Entry(id=name, root=deployment.model)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(names, "_entry", entry)
    monkeypatch.setattr(catalogs, "MAX_KEPT", 500)
    keys = {f"k{one}": f"sk-{one}" for one in range(40)}
    catalog = _catalog(*(Model(f"m{one}", "crowd", keys=keys) for one in range(20)))
    first = names.listing(catalog, _caller(catalog, "sk-0"), {})
    assert len(first) == 20 and names.listing(catalog, _caller(catalog, "sk-0"), {}) is first
    for key in keys.values():
        assert names.listing(catalog, _caller(catalog, key), {}) == first
    assert len(made) == 40 * 20 and sum(one() is not None for one in made) <= 500 + len(first)


# --- keys and objects ---


def test_a_document_of_another_deployment_opens_nothing() -> None:
    stranger = Model("other", keys={"x": "sk-evil"})
    document = json.loads(stranger.document()) | {"uid": A.uid}
    catalog = build([A.object()], [json.dumps(document)], KEYS)
    assert not _caller(catalog, "sk-evil").known


def test_keys_need_the_routing_key_of_their_document() -> None:
    catalog = build([A.object()], [A.document()], {"0" * 16: b"x" * 32})
    assert not _caller(catalog, "sk-a").known
    group = Model(urls=["http://127.0.0.1:1"], keys={"x": "1"})
    (deployment,) = build([group.object()], [group.document()], {}).deployments.values()
    assert deployment.groups[0].credential is None


@pytest.mark.parametrize(
    "memory",
    [
        {},
        {"contextTokens": 131072},
        {"contextTokens": 131072, "cachedTokens": 0},
        {"cachedTokens": 9},
        {"concurrentRequests": 7},
    ],
)
def test_the_router_reads_the_memory_of_a_spec_as_the_operator_does(memory: dict[str, int]) -> None:
    item = A.object()
    item["spec"]["memory"] = memory
    (read,) = build([item], [], KEYS).deployments.values()
    spec = Memory.model_validate(memory)
    assert (read.context_tokens, read.slots, read.cached_tokens) == (
        spec.context_tokens,
        spec.concurrent_requests,
        spec.cache_capacity,
    )


def test_both_headers_are_tried() -> None:
    catalog = _catalog(A)
    assert caller(catalog, {"Authorization": "Bearer sk-wrong", "x-api-key": "sk-a"}, "").known
    assert not caller(catalog, {"Authorization": "Basic sk-a"}, "").known


def test_credentials_are_those_of_each_group() -> None:
    model = Model(urls=["http://127.0.0.1:1", "http://127.0.0.1:2"])
    (deployment,) = _catalog(model).deployments.values()
    assert [group.credential for group in deployment.groups] == [
        routing.group_credential(ROUTING_KEY, "default", "tiny", model.uid, index, 1) for index in (0, 1)
    ]


@pytest.mark.parametrize(
    ("spec", "states", "outlook"),
    [
        ({}, ["Ready", "GaveUp"], Outlook.READY),
        ({}, ["Loading"], Outlook.COMING),
        ({}, ["BackingOff"], Outlook.COMING),
        ({}, ["Draining"], Outlook.COMING),
        ({}, ["GaveUp"], Outlook.FAILED),
        ({}, [], Outlook.COMING),
        ({"replicas": 0}, [], Outlook.OFF),
        ({"replicas": 0, "autoscaling": {"minReplicas": 0}}, [], Outlook.ASLEEP),
        ({"replicas": 0, "autoscaling": {"minReplicas": 0}, "suspend": True}, [], Outlook.OFF),
        ({"suspend": True}, ["Draining"], Outlook.OFF),
    ],
)
def test_what_a_deployment_can_be_expected_to_do(spec: dict[str, Any], states: list[str], outlook: Outlook) -> None:
    model = Model(urls=["http://127.0.0.1:1"] * len(states), states=states, spec=spec)
    (deployment,) = _catalog(model).deployments.values()
    assert deployment.outlook is outlook


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["groups", "index", "epoch", "endpoint", "state", "server", "aliases", "model", "memory"]),
        inner, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "kind"]), _ODD), st.text(max_size=50))
def test_an_odd_object_takes_nothing_from_the_others(odd: dict[str, Any], document: str) -> None:
    good = A.object()
    catalog = build([odd, good, {**good, "metadata": {"name": "n", "namespace": "a", "uid": "u"}, **odd}], [document], KEYS)
    assert "a/chat" in catalog.deployments


# --- bodies ---


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 1}', b'{"model": ""}', b"\xff", b'{"model": NaN}', b"[" * 100])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        asked.parse(body)
    assert error.value.status == 400


def test_bodies_are_bounded_before_they_become_objects() -> None:
    with pytest.raises(ApiError, match="too large"):
        asked.parse(b'{"messages": [' + b"[]," * 500_000 + b"1]}")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        asked.parse(body)
    except ApiError as error:
        assert error.status == 400


def test_a_renamed_body_is_otherwise_the_same() -> None:
    body = {"model": "alias", "messages": [{"role": "user", "content": "é😀 \u2028\ud800"}], "seed": 2**70, "x": 0.1}
    renamed = asked.parse(json.dumps(body).encode()).renamed("a/b")
    assert json.loads(renamed) == body | {"model": "a/b"}


def test_a_renamed_body_of_another_script_is_not_larger() -> None:
    body = json.dumps(
        {"model": "alias", "messages": [{"role": "user", "content": "é語😀" * 1000}]}, ensure_ascii=False
    ).encode()
    assert len(asked.parse(body).renamed("a/b")) <= len(body)


def test_a_conversation_that_goes_on_begins_with_what_it_was() -> None:
    first = [{"role": "system", "content": "s" * 3000}, {"role": "user", "content": "q" * 3000}]
    before = asked.parse(json.dumps({"messages": first, "temperature": 1}).encode()).prompt
    later = {"stream": True, "messages": [*first, {"role": "assistant", "content": "a"}]}
    after = asked.parse(json.dumps(later).encode()).prompt
    assert after.startswith(before)
    other = asked.parse(json.dumps({"messages": first, "tools": [{"name": "t"}]}).encode()).prompt
    assert not other.startswith(before)


# --- balancing ---


def test_a_prompt_goes_where_its_beginning_is_until_that_group_is_loaded() -> None:
    def choice(first: int, second: int, cached: int) -> str:
        chosen = balance.choose([balance.Candidate("a", first, cached, 1), balance.Candidate("b", second, 0, 2)])
        assert chosen is not None
        return chosen.name

    blocks = balance.SPILL_BYTES // prefixes.BLOCK_BYTES
    assert choice(1, 0, blocks + 1) == "a"
    assert choice(2, 0, blocks + 1) == "b"
    assert choice(2, 0, 0) == "b" and choice(0, 0, 0) == "a"
    assert balance.choose([]) is None


def test_equal_groups_take_turns() -> None:
    used = {"a": 0, "b": 0, "c": 0}
    for number in range(1, 10):
        chosen = balance.choose([balance.Candidate(name, 0, 0, at) for name, at in used.items()])
        assert chosen is not None
        used[chosen.name] = number
    assert sorted(used.values()) == [7, 8, 9]


@given(st.lists(st.binary(min_size=0, max_size=4000), max_size=12), st.integers(0, 3000))
def test_what_is_remembered_is_a_beginning(prompts: list[bytes], tokens: int) -> None:
    remembered = prefixes.Remembered(tokens)
    for prompt in prompts:
        remembered.add(prefixes.chain(prompt))
    for prompt in prompts:
        blocks = prefixes.chain(prompt)
        known = remembered.matching(blocks)
        assert all(block in remembered._blocks for block in blocks[:known])
        assert all(block not in remembered._blocks for block in blocks[known:])


def test_the_memory_of_prompts_is_bounded() -> None:
    remembered, rng = prefixes.Remembered(10**9), random.Random(1)
    for _ in range(200):
        remembered.add(prefixes.chain(rng.randbytes(prefixes.MAX_BLOCKS * prefixes.BLOCK_BYTES)))
    assert len(remembered) == prefixes.MOST_REMEMBERED


# --- turns ---


@dataclass(eq=False)
class _Waiting:
    caller_id: str
    number: int
    priority: KeyPriority = KeyPriority.NORMAL


def _order(turns: FairQueue[_Waiting]) -> list[str]:
    found = []
    while (one := turns.take(lambda _: True)) is not None:
        found.append(f"{one.caller_id}{one.number}")
    return found


def test_keys_take_turns_within_a_priority() -> None:
    turns: FairQueue[_Waiting] = FairQueue()
    for number in range(3):
        turns.add(_Waiting("a", number))
    turns.add(_Waiting("b", 0))
    turns.add(_Waiting("c", 0, KeyPriority.HIGH))
    turns.add(_Waiting("d", 0, KeyPriority.LOW))
    again = _Waiting("a", 9)
    turns.add(again, first=True)
    assert len(turns) == 7
    assert _order(turns) == ["c0", "a9", "b0", "a0", "a1", "a2", "d0"]
    turns.remove(again)
    assert len(turns) == 0


def test_a_request_without_a_place_does_not_hold_up_other_keys() -> None:
    turns: FairQueue[_Waiting] = FairQueue()
    for name in "ab":
        turns.add(_Waiting(name, 0))
    taken = turns.take(lambda one: one.caller_id == "b")
    assert taken is not None and taken.caller_id == "b" and len(turns) == 1


# --- limits ---


def test_tokens_per_minute_are_a_debt_that_is_paid_back() -> None:
    held, limited = limits.CallerLimits(), KeyLimits(tokens_per_minute=60)
    held.enter("k", limited, 0.0)
    held.leave("k", limited, 90, 0.0)
    with pytest.raises(limits.Exceeded) as error:
        held.enter("k", limited, 10.0)
    assert error.value.retry_after == 21
    held.enter("k", limited, 31.5)
    # A new limit counts at once.
    held.enter("k", KeyLimits(tokens_per_minute=1000), 31.5)


def test_the_table_of_callers_is_bounded_and_keeps_those_with_requests() -> None:
    held, limited = limits.CallerLimits(), KeyLimits(requests_in_flight=1)
    held.enter("busy", limited, 0.0)
    for number in range(limits.MAX_CALLERS + 50):
        held.enter(str(number), limited, 0.0)
        held.leave(str(number), limited, 0, 0.0)
    assert len(held) == limits.MAX_CALLERS
    with pytest.raises(limits.Exceeded):
        held.enter("busy", limited, 0.0)


def test_callers_without_limits_make_nobody_forget_what_a_key_has_used() -> None:
    held, limited = limits.CallerLimits(), KeyLimits(tokens_per_minute=60)
    held.enter("key", limited, 0.0)
    held.leave("key", limited, 600, 0.0)
    for number in range(limits.MAX_CALLERS + 1):
        held.enter(f"address {number}", KeyLimits(), 0.0)
        held.leave(f"address {number}", KeyLimits(), 10, 0.0)
        held.wake(f"address {number}", 0.0)
    with pytest.raises(limits.Exceeded):
        held.enter("key", limited, 1.0)


def test_the_table_of_wakes_is_bounded() -> None:
    held = limits.CallerLimits()
    for _ in range(limits.WAKES_PER_MINUTE):
        held.wake("key", 0.0)
    for number in range(limits.MAX_CALLERS - 1):
        held.wake(f"address {number}", 0.0)
    with pytest.raises(limits.Exceeded):
        held.wake("key", 0.0)
    for number in range(limits.MAX_CALLERS):
        held.wake(f"other {number}", 0.0)
    held.wake("key", 0.0)


# --- suspects ---


def test_a_request_is_refused_after_two_failures_for_a_while() -> None:
    known, name = suspects.Suspects(), suspects.digest("u", "/v1/chat/completions", b"{}")
    assert known.failed(name, "a", 0.0, 0.5) == 1 and not known.refused(name, 1.0)
    assert known.failed(name, "b", 1.0, 2.0) == 2 and known.refused(name, 3.0)
    assert not known.refused(name, 3.0 + suspects.FORGET_SECONDS)
    assert suspects.digest("v", "/v1/chat/completions", b"{}") != name


def test_one_failure_counts_once_however_many_clients_sent_the_request() -> None:
    known = suspects.Suspects()
    assert [known.failed("x", "a", sent, 5.0 + sent) for sent in (1.0, 2.0, 3.0)] == [1, 1, 1]
    # Sent to the same group after it had failed and was back: it failed again.
    assert known.failed("x", "a", 9.0, 10.0) == 2 and known.refused("x", 11.0)


def test_a_request_that_was_answered_is_no_suspect() -> None:
    known = suspects.Suspects()
    known.failed("x", "a", 0.0, 1.0)
    known.answered("x")
    assert known.failed("x", "b", 2.0, 3.0) == 1
    known.answered("never seen")


def test_the_table_of_suspects_is_bounded() -> None:
    known = suspects.Suspects()
    for number in range(suspects.MAX_SUSPECTS + 10):
        known.failed(str(number), "a", 0.0, 0.0)
    assert len(known) == suspects.MAX_SUSPECTS


def test_a_key_counts_everywhere_while_routing_keys_are_replaced() -> None:
    other = b"o" * 32
    first, second = Model("one", keys={"x": "sk"}), Model("two", keys={"x": "sk"})
    document = json.loads(second.document())
    document["keyId"] = routing.key_id(other)
    document["keys"][0]["digest"] = routing.key_digest(other, "sk")
    both = {**KEYS, routing.key_id(other): other}
    catalog = build([first.object(), second.object()], [first.document(), json.dumps(document)], both)
    assert _caller(catalog, "sk").grants.keys() == {first.uid, second.uid}
