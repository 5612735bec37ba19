"""How the keys of a cluster are offered and taken, with an API server that is a dictionary."""

import asyncio
import base64
import copy
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.sharing import handover
from thunderfleet_controlplane.install.steps import cluster
from thunderfleet_lib.kube import ApiError

TOKEN, SEALED = "abcdef.0123456789abcdef", b"sealed"
PATH = f"{cluster.SECRETS}/thunderfleet-control-plane-abcdef"


class RecordedApi:
    """Objects by path. A change with an old version is a conflict."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            f"{cluster.SECRETS}/bootstrap-token-abcdef": {"metadata": {"uid": "u-1", "resourceVersion": "0"}}
        }
        self.refuses: int | None = None
        self.before_patch: Any = lambda: None

    def with_files(self, server: str, ca: Path, *, token: str) -> "RecordedApi":
        assert token == TOKEN
        return self

    async def __aenter__(self) -> "RecordedApi":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, path: str) -> dict[str, Any]:
        if self.refuses is not None:
            raise ApiError(self.refuses, "Refused", "no")
        if path not in self.objects:
            raise ApiError(404, "NotFound", "no")
        return copy.deepcopy(self.objects[path])

    async def create(self, path: str, body: dict[str, Any]) -> None:
        made = copy.deepcopy(body)
        made["metadata"]["resourceVersion"] = "1"
        self.objects[f"{path}/{body['metadata']['name']}"] = made

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.before_patch()
        metadata = self.objects[path]["metadata"]
        if metadata["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "changed")
        metadata.setdefault("annotations", {}).update(body["metadata"]["annotations"])
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        return await self.get(path)

    async def delete(self, path: str) -> None:
        self.objects.pop(path, None)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> RecordedApi:
    made = RecordedApi()
    monkeypatch.setattr(handover, "Kube", made)
    monkeypatch.setattr(handover, "KNOWN_SECONDS", 0.0)
    asyncio.run(handover.offer(made, TOKEN, SEALED))  # type: ignore[arg-type]
    return made


def take(claim: str) -> bytes:
    return asyncio.run(handover.take("https://127.0.0.1:6444", Path("ca"), TOKEN, claim))


def test_what_is_offered_goes_with_the_token(api: RecordedApi) -> None:
    owned = [body for path, body in api.objects.items() if "bootstrap-token" not in path]
    assert {body["kind"] for body in owned} == {"Secret", "Role", "RoleBinding"}
    for body in owned:
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Secret", "bootstrap-token-abcdef", "u-1")


def test_only_the_token_may_read_it_and_nothing_else(api: RecordedApi) -> None:
    found = {body["kind"]: body for body in api.objects.values() if "kind" in body}
    assert found["Role"]["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["thunderfleet-control-plane-abcdef"],
            "verbs": ["get", "patch"],
        }
    ]
    (subject,) = found["RoleBinding"]["subjects"]
    assert (subject["kind"], subject["name"]) == ("User", "system:bootstrap:abcdef")


def test_a_mac_that_was_interrupted_takes_it_again(api: RecordedApi) -> None:
    assert take("first") == take("first") == SEALED


def test_of_two_macs_one_gets_the_keys(api: RecordedApi) -> None:
    assert take("first") == SEALED
    with pytest.raises(InstallError, match="another Mac uses this line"):
        take("second")


def test_of_two_macs_at_the_same_moment_one_gets_the_keys(api: RecordedApi) -> None:
    def other() -> None:
        api.before_patch = lambda: None
        metadata = api.objects[PATH]["metadata"]
        metadata["annotations"], metadata["resourceVersion"] = {handover.CLAIM: "first"}, "2"

    api.before_patch = other
    with pytest.raises(InstallError, match="another Mac uses this line"):
        take("second")
    assert take("first") == SEALED


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_line_that_was_used_or_has_expired_says_so(api: RecordedApi, status: int) -> None:
    api.refuses = status
    with pytest.raises(InstallError, match=r"was used already, or has expired.*token create --control-plane"):
        take("first")


def test_an_api_server_that_does_not_know_the_token_yet_is_asked_again(
    api: RecordedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "KNOWN_SECONDS", 60.0)
    api.refuses = 401

    async def pause(seconds: float) -> None:
        api.refuses = None

    monkeypatch.setattr(asyncio, "sleep", pause)
    assert take("first") == SEALED


def test_other_failures_are_not_taken_for_that(api: RecordedApi) -> None:
    api.refuses = 503
    with pytest.raises(ApiError):
        take("first")


def test_what_was_used_is_deleted(api: RecordedApi) -> None:
    asyncio.run(handover.withdraw(api, "abcdef"))  # type: ignore[arg-type]
    assert not any(path.startswith(cluster.SECRETS) for path in api.objects)
    asyncio.run(handover.withdraw(api, "abcdef"))  # type: ignore[arg-type]


def test_a_secret_without_the_keys_is_refused(api: RecordedApi) -> None:
    for content in ({}, {"sealed": "#"}, {"sealed": base64.b64encode(b"x").decode() + "?"}):
        api.objects[PATH]["data"] = content
        with pytest.raises(InstallError, match="cannot be read"):
            take("first")
