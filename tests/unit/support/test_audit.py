"""What counts as a write in the API server's audit log."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import audit


def event(verb: str = "patch", resource: str = "pods", **more: Any) -> dict[str, Any]:
    about = {"resource": resource, "namespace": "default", "name": "a", **more.pop("about", {})}
    base = {"stage": "ResponseComplete", "verb": verb, "user": {"username": "system:node:studio-1"}, "objectRef": about}
    return {**base, "requestURI": "/api/v1/x", "responseStatus": {"code": 200}, **more}


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection"])
def test_every_verb_that_changes_something_is_a_write(verb: str) -> None:
    assert audit.write_of(event(verb)) == f"system:node:studio-1 {verb} pods default/a"


def test_a_subresource_is_named() -> None:
    said = audit.write_of(event(resource="nodes", about={"subresource": "status", "namespace": None}))
    assert said == "system:node:studio-1 patch nodes/status a"


@pytest.mark.parametrize(
    "quiet",
    [
        event("get"),
        event("list"),
        event("watch"),
        event("update", "leases"),
        event("create", "leases"),
        event("create", "tokenreviews"),
        event("create", "subjectaccessreviews"),
        event(stage="RequestReceived"),
        event(stage="ResponseStarted"),
        event(responseStatus={"code": 409}),
        event(responseStatus={"code": 403}),
        event(requestURI="/api/v1/x?dryRun=All"),
        event(objectRef=None),
    ],
)
def test_what_stores_nothing_is_none(quiet: dict[str, Any]) -> None:
    assert audit.write_of(quiet) is None


def test_writes_are_counted_by_what_they_are() -> None:
    counted = audit.writes([event(), event(), event("get"), event("create", "events")])
    assert counted == {"system:node:studio-1 patch pods default/a": 2, "system:node:studio-1 create events default/a": 1}


def test_a_log_is_read_on_by_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    first, second = json.dumps(event()), json.dumps(event("get"))
    log.write_text(f"{first}\n{second[:20]}")
    events, offset = audit.read_from(log, 0)
    assert [found["verb"] for found in events] == ["patch"]
    log.write_text(f"{first}\n{second}\n")
    events, offset = audit.read_from(log, offset)
    assert [found["verb"] for found in events] == ["get"]
    assert audit.read_from(log, offset) == ([], offset)
