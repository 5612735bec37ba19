"""Bytes from other processes are a message or the expected error, and nothing that a member says grows without bound."""

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import framing, intakeprotocol, protocol
from thunderfleet_runner.api.service import Service
from thunderfleet_runner.framing import BrokenStream
from thunderfleet_runner.group.decide.rendezvous import Identity, Rendezvous
from thunderfleet_runner.group.leader import Leader
from thunderfleet_runner.group.metrics import GroupMetrics
from thunderfleet_runner.net import peers
from thunderfleet_runner.net.control import MESSAGE_LIMIT

PLAN = Plan.model_validate(
    {
        "namespace": "default", "deployment": "tiny", "uid": "u", "index": 0, "epoch": 3, "model": "org/m", "modelPath": "/m",
        "backend": "ring", "split": "Tensor",
        "ranks": [{"rank": n, "node": f"studio-{n}", "pod": f"p{n}", "address": "127.0.0.1", "controlPort": 1, "gatewayPort": 2,
                   "memoryBytes": 1, "ringAddress": "127.0.0.1", "ringPorts": [3 + n]} for n in (0, 1, 2)],
        "memory": {"contextTokens": 64, "concurrentRequests": 1, "cachedTokens": 0},
    }
)  # fmt: skip
_NAMES = st.sampled_from([
    "type", "attempt", "port", "digest", "stage", "fault", "reason", "message", "echo", "rank", "size", "all_sum",
    "loaded_bytes", "total_bytes", "layers", "peak_memory_bytes", "tokens", "vocabulary", "chat_template", "number", "data",
    "steps", "in_step", "expected_step_seconds", "step_known", "heartbeat_age_seconds", "uid", "index", "epoch",
    "node", "mlx", "mlx_lm",
    "state", "hosts", "request",
])  # fmt: skip
_TYPES = st.sampled_from([
    "hello", "checked", "failure", "formed", "progress", "loaded", "ready", "ended", "gather", "leaving", "pulse", "welcome",
    "refusal", "preflight", "launch", "end", "gathered", "check", "turn", "measure", "look", "stop", "release", "beat", "token",
    "done", "heartbeat", "idle", "log", "start", "generate", "cancel", "prepare", "prepared", "up", "rejected",
])  # fmt: skip
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 4)
    | st.sampled_from([10**30, -(10**30), 1 << 62, 1e308, "retry", "serve", "RankKilled", "AAAA", "x" * 100_000, "0" * 40])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)
_OBJECTS = st.builds(lambda kind, rest: {**rest, "type": kind}, _TYPES, st.dictionaries(_NAMES, _VALUES, max_size=8))
_FRAMES = _OBJECTS.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60) | st.just(b"[" * 100_000)
_ADAPTERS: list[TypeAdapter[Any]] = [peers.REPORT, peers.ORDER, peers.ANSWER, TypeAdapter(peers.Hello)]
_DECODERS: list[Callable[[bytes], Any]] = [
    protocol.decode_to_rank, protocol.decode_from_rank, intakeprotocol.decode_question, intakeprotocol.decode_answer,
]  # fmt: skip


@given(body=_FRAMES)
def test_any_bytes_are_a_message_or_the_expected_error(body: bytes) -> None:
    for adapter in _ADAPTERS:
        try:
            found = adapter.validate_json(body)
        except ValueError:
            continue
        assert len(found.model_dump_json()) < MESSAGE_LIMIT
    for decode in _DECODERS:
        try:
            decode(body)
        except BrokenStream as error:
            assert len(str(error)) < 1000


@given(
    bodies=st.lists(st.binary(max_size=20), max_size=5),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    rest=st.binary(max_size=5),
)
def test_frames_are_the_same_however_they_arrive(bodies: list[bytes], cuts: list[int], rest: bytes) -> None:
    stream = b"".join(map(framing.frame, bodies)) + rest
    frames = framing.Frames()
    found: list[bytes] = []
    ends = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    try:
        for begin, end in itertools.pairwise(ends):
            found += frames.feed(stream[begin:end])
    except BrokenStream:
        assert len(rest) >= 4
    assert found[: len(bodies)] == bodies


_SAME = {"uid": "u", "index": 0, "epoch": 3, "rank": 1, "node": "studio-1", "mlx": "1", "mlx_lm": "2", "digest": "d"}


@given(claims=st.lists(st.dictionaries(st.sampled_from(sorted(_SAME)), _VALUES, max_size=3), max_size=6))
def test_any_claims_leave_a_state_of_bounded_size(claims: list[dict[str, Any]]) -> None:
    state = Rendezvous(PLAN, Identity("1", "2", "d"), frozenset({0}))
    for claim in claims:
        try:
            hello = peers.Hello.model_validate_json(json.dumps({**_SAME, **claim}))
        except ValueError:
            continue
        state, refusal = state.claim(hello)
        assert refusal is not None or hello.rank in state.present
    assert state.present <= {0, 1, 2} and set(state.refusals) <= {1, 2}
    assert sum(map(len, state.refusals.values())) < 10_000


@given(reports=st.lists(st.tuples(st.sampled_from([1, 2]), _OBJECTS), max_size=8))
def test_any_reports_leave_a_state_that_can_be_sent(
    tmp_path_factory: pytest.TempPathFactory, reports: list[tuple[int, dict[str, Any]]]
) -> None:
    folder = tmp_path_factory.mktemp("history")

    async def run() -> None:
        service = Service(PLAN, 0, lambda: GroupState(uid="u", index=0, epoch=3, phase=GroupPhase.WAITING))
        metrics = GroupMetrics(service.registry, lambda: leader.heartbeat_ages)
        leader = Leader(
            PLAN, Identity("1", "2", "d"), lambda: service, metrics.observe, lambda: None, Path(folder / "history.json")
        )
        for rank, value in reports:
            try:
                leader.receive(rank, peers.REPORT.validate_json(json.dumps(value)))
            except ValueError:
                # Ends the member's connection.
                continue
        assert len(peers.Beat(state=leader.state).model_dump_json()) < MESSAGE_LIMIT // 4

    asyncio.run(run())
