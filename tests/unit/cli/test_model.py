"""What ``thunderfleet model`` shows."""

import re
from datetime import UTC, datetime
from typing import cast

import pytest
from thunderfleet_cli.cli import parser
from thunderfleet_cli.model import command, patience, view
from thunderfleet_cli.model.patience import Patience
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_lib.kube import Kube
from thunderfleet_localcluster.errors import LocalClusterError


def cache(resolved: str = "True", fetched: str = "True", generation: int = 1) -> view.Json:
    conditions = [
        {"type": "Resolved", "status": resolved, "reason": "Resolved" if resolved == "True" else "Gated", "message": "ask"},
        {"type": "Fetched", "status": fetched, "reason": "Fetched" if fetched == "True" else "Fetching", "message": "a 50 %"},
    ]
    macs = [{"node": "a", "phase": "Complete"}, {"node": "b", "phase": "Copying"}]
    status = {
        "size": "1Gi",
        "copies": "1/2",
        "macs": macs,
        "manifest": "m1",
        "conditions": [{**one, "observedGeneration": 1} for one in conditions],
    }
    return {
        "metadata": {"name": "tiny", "namespace": "ns", "generation": generation},
        "spec": {"repository": "owner/tiny"},
        "status": status,
    }


URI, SHA256 = "https://models.example.com/team/tiny/", "a" * 64


def test_what_others_wrote_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    found = cache()
    found["status"] |= {"macs": [{"node": "a\x1b[2J", "phase": "Complete"}], "size": "\x9b31m1Gi"}
    command.say("Fetching: \x1b]0;title\x07a 50 %")
    assert not set(view.table([view.row(found)]) + capsys.readouterr().err) & set("\x1b\x07\x9b")


def test_the_manifest_of_a_uri_is_valid() -> None:
    body = view.manifest("ns", "tiny", URI, "main", 2, None, None, SHA256)
    found = ModelCache.load(body)
    assert (found.spec.repository, found.spec.uri, found.spec.sha256, found.spec.copies) == (None, URI, SHA256, 2)
    shown = view.row({**cache(), "spec": body["spec"]})
    assert shown[:3] == ("ns", "tiny", URI)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((URI,), "sha256 must be the SHA-256"),
        ((URI, "--sha256", "x"), "sha256 must be the SHA-256"),
        ((URI.rstrip("/"), "--sha256", SHA256), "uri must have the form"),
        (("http://models.example.com/tiny/", "--sha256", SHA256), "uri must have the form"),
        ((URI, "--sha256", SHA256, "--quantize", "4"), "are for repositories"),
        ((URI, "--sha256", SHA256, "--token-secret", "hub"), "are for repositories"),
        ((URI, "--sha256", SHA256, "--revision", "v1"), "are for repositories"),
        (("owner/tiny", "--sha256", SHA256), "--sha256 needs a URI"),
    ],
)
def test_what_cannot_be_pulled_is_refused_before_a_cluster_is_asked(words: tuple[str, ...], says: str) -> None:
    arguments = parser().parse_args(["model", "pull", *words])
    with pytest.raises(LocalClusterError, match=says):
        arguments.call(arguments)


def test_the_manifest_is_valid() -> None:
    found = ModelCache.load(view.manifest("ns", view.name_for("owner/Tiny-4bit_x"), "owner/Tiny-4bit_x", "main", 2, "hub"))
    assert (found.metadata.name, found.spec.copies, found.spec.token_secret) == ("tiny-4bit-x", 2, "hub")


@pytest.mark.parametrize(
    ("resolved", "fetched", "expected"),
    [("False", "False", "Gated: ask"), ("True", "False", "Fetching: a 50 %"), ("True", "True", "Fetched")],
)
def test_what_a_cache_waits_for(resolved: str, fetched: str, expected: str) -> None:
    found = cache(resolved, fetched)
    assert view.waits_for(found) == expected
    assert view.is_fetched(found) == (expected == "Fetched")


def test_conditions_of_an_earlier_spec_do_not_count() -> None:
    assert not view.is_fetched(cache(generation=2))
    assert view.waits_for(cache(generation=2)) == "Pending: waiting for the operator"


def test_the_table_has_caches_and_what_no_cache_names() -> None:
    tiny = {"manifest": "m1", "repository": "owner/tiny", "commit": "c" * 40, "bytes": 2**30}
    old = {"manifest": "m2", "repository": "owner/old", "commit": "d" * 40, "bytes": 2**31}
    served = {"manifest": "m3", "repository": "owner/served", "commit": "e" * 40, "bytes": 5}
    group = {"name": "ns/md-0", "modelPath": f"/store/models--owner--served/snapshots/{'e' * 40}"}

    def profile(name: str, *copies: view.Json, **status: object) -> view.Json:
        return {"metadata": {"name": name}, "status": {"copies": list(copies), **status}}

    profiles = [
        profile("a", tiny, {**old, "usedAt": "2026-01-01T00:00:00Z"}, served, groups=[group]),
        # No longer one of the Macs of the ModelCache, whose ModelDeployment names the model all the same.
        profile("b", tiny, {**old, "usedAt": "2026-01-03T21:30:00Z"}),
        {"metadata": {"name": "c"}},
    ]
    owned = cache()
    owned["metadata"]["ownerReferences"] = [{"kind": "ModelDeployment", "name": "chat", "controller": True}]
    owned["status"]["assignments"] = [{"node": "a"}]
    rows = [view.row(cache()), *view.unreferenced(profiles, [owned], datetime(2026, 1, 4, tzinfo=UTC))]
    lines = [re.split(" {3,}", line) for line in view.table(rows).splitlines()]
    assert lines[1] == ["ns", "tiny", "owner/tiny", "1Gi", "1/2", "Fetched", "-", "a"]
    assert lines[2:] == [
        ["-", "-", "owner/old@dddddddd", "2Gi", "-", "Unreferenced", "-", "a (unused 3 d),b (unused 2 h)"],
        ["-", "-", "owner/served@eeeeeeee", "5", "-", "InUse", "group ns/md-0", "a"],
        ["-", "-", "owner/tiny@cccccccc", "1Gi", "-", "Named", "ModelDeployment chat", "b"],
    ]
    assert view.row(owned)[6] == "ModelDeployment chat"


def test_ages_survive_wrong_clocks() -> None:
    now = datetime(2026, 1, 4, tzinfo=UTC)
    assert view.age("2026-01-03T23:59:59Z", now) == "used in the last hour"
    assert view.age("2026-01-02T23:59:59Z", now) == "unused 24 h"
    assert view.age("2031-01-01T00:00:00Z", now) == "used at an unknown time"


def test_the_command_line() -> None:
    found = parser().parse_args(["model", "pull", "owner/tiny", "--copies", "3", "--token-secret", "hub", "--no-wait"])
    assert (found.model, found.copies, found.token_secret, found.no_wait) == ("owner/tiny", 3, "hub", True)
    assert parser().parse_args(["model", "list", "-A", "-o", "json"]).all_namespaces
    with pytest.raises(SystemExit):
        parser().parse_args(["model"])


def waiting(reason: str, done: int = 0, manifest: str | None = "m1") -> view.Json:
    """A ModelCache that waits for this reason, with this many bytes on its Mac."""
    resolved = "False" if reason in ("Resolving", "Quantizing", "Gated") else "True"
    kinds = [("Resolved", resolved, reason if resolved == "False" else "Resolved"), ("Fetched", "False", reason)]
    conditions = [
        {"type": kind, "status": status, "reason": why, "message": "text", "observedGeneration": 1}
        for kind, status, why in kinds
    ]
    status = {"manifest": manifest, "macs": [{"node": "a", "bytesDone": done}], "conditions": conditions}
    return {"metadata": {"name": "tiny", "generation": 1}, "spec": {"repository": "owner/tiny"}, "status": status}


def ends_after(reasons: list[tuple[str, int]], seconds: float = 100_000.0) -> tuple[float, str] | None:
    """When pull stops, and why, if these reasons and bytes follow each other every ten seconds again and again."""
    waits, now = Patience(0.0), 0.0
    while now < seconds:
        reason, done = reasons[int(now / 10) % len(reasons)]
        if (over := waits.over(waiting(reason, done), now)) is not None:
            return now, over
        now += 10.0
    return None


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([("Gated", 0)], (40.0, "this has lasted for 30 s")),
        ([("WrongBytes", 7)], (310.0, "nothing more has arrived for 5 minutes")),
        # The same file is fetched and thrown away.
        ([("Fetching", 7), ("Fetching", 9), ("WrongBytes", 7)], (320.0, "nothing more has arrived for 5 minutes")),
        ([("NoSource", 0)], (310.0, "nothing more has arrived for 5 minutes")),
        ([("NothingToFetch", 0)], (310.0, "nothing more has arrived for 5 minutes")),
        ([("Fetching", 7)], (1810.0, "nothing more has arrived for 30 minutes")),
        # A person is asked only if nothing else happens.
        ([("Gated", 0), ("Fetching", 7)], (1830.0, "nothing more has arrived for 30 minutes")),
        ([("RateLimited", 7)], None),
    ],
)
def test_pull_stops_when_nothing_more_can_arrive(reasons: list[tuple[str, int]], expected: tuple[float, str] | None) -> None:
    assert ends_after(reasons) == expected


def test_pull_waits_as_long_as_bytes_arrive() -> None:
    """However slowly; and the copies of a quantized model are counted anew, since they are smaller than the repository."""
    waits = Patience(0.0)
    for turn in range(100):
        assert waits.over(waiting("WrongBytes" if turn % 2 else "Fetching", turn, None), turn * 250.0) is None
    for turn in range(10):
        assert waits.over(waiting("Fetching", turn, "m2"), 25_000.0 + turn * 1500.0) is None


def test_without_an_operator_pull_stops() -> None:
    nothing = {"metadata": {"name": "tiny", "generation": 1}, "spec": {"repository": "owner/tiny"}}
    waits = Patience(0.0)
    assert waits.over(nothing, 300.0) is None
    assert waits.over(nothing, 301.0) == "nothing more has arrived for 5 minutes"


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "86401", "soon"])
def test_a_time_limit_is_at_most_a_day(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["model", "pull", "owner/tiny", "--timeout", text])
    assert "--timeout" in capsys.readouterr().err


class Caches:
    """An API server with one ModelCache, or without one."""

    def __init__(self, found: view.Json | None) -> None:
        self.found = found

    async def get_or_none(self, path: str) -> view.Json | None:
        return self.found


async def followed(found: view.Json | None) -> int:
    return await command._follow(cast(Kube, Caches(found)), "/apis/x/namespaces/ns/modelcaches/tiny", 3600.0, fetch=True)


async def test_pull_says_why_it_stops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(patience, "TRIED_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(command, "POLL_SECONDS", 0.001)
    assert await followed(waiting("WrongBytes")) == command.NOT_FETCHED
    first, second, last = capsys.readouterr().err.splitlines()
    assert first == "  … WrongBytes: text"
    assert second == "not fetched, nothing more has arrived for 0 minutes: WrongBytes: text"
    assert last.startswith("the ModelCache still exists and the operator tries again")


async def test_pull_of_a_cache_that_is_deleted_meanwhile() -> None:
    with pytest.raises(LocalClusterError, match="ModelCache tiny has been deleted"):
        await followed(None)
