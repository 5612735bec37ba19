"""Names of Secrets: the API server refuses those that no Secret can have, and the operator sends no request for them."""

import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.meta.fields import is_secret_name

from tests.support import yamltext

ROOT = Path(__file__).parents[3]
FIELDS = (
    ("modelcaches", "tokenSecret"),
    ("modeldeployments", "model", "tokenSecret"),
    ("modeldeployments", "server", "apiKeySecret"),
)
GOOD = ("a", "hub", "api-keys", "0", "team.keys-1.v2", "a--b", "x" * 253)
BAD = (
    "",
    ".",
    "..",
    "../../other/secrets/keys",
    "a/b",
    "a..b",
    "a.-b",
    "a-.b",
    "-a",
    "a-",
    ".a",
    "a.",
    "Keys",
    "my_keys",
    "a b",
    "a%2fb",
    "a?b",
    "a\n",
    "ä",
    "x" * 254,
)


@cache
def schema(kind: str, *path: str) -> dict[str, Any]:
    whole = yamltext.load((ROOT / "crds" / f"thunderfleet.io_{kind}.yaml").read_text())
    node = whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path:
        node = node["properties"][name]
    return dict(node)


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_the_api_server_accepts_names_of_secrets_only(path: tuple[str, ...], name: str) -> None:
    node = schema(*path)
    (found,) = node["x-kubernetes-validations"]
    pattern = re.fullmatch(r"self\.matches\('(.*)'\)", found["rule"])
    assert pattern is not None and "the name of a Secret has lower-case letters" in found["message"]
    # RE2 has no end of a line before the end of the text.
    matches = re.search(pattern[1].removesuffix("$") + r"\Z", name) is not None
    assert (matches and node["minLength"] <= len(name) <= node["maxLength"]) == (name in GOOD)
    assert is_secret_name(name) == (name in GOOD)


def test_objects_of_earlier_versions_are_read_whatever_the_name() -> None:
    """A ModelDeployment with the name of no Secret may serve: a token is needed to fetch the model only."""
    metadata = {"name": "tiny", "namespace": "ns", "creationTimestamp": datetime(2026, 11, 30, tzinfo=UTC)}
    model = {"repository": "owner/tiny", "tokenSecret": "My_Token"}
    deployment = ModelDeployment.load({"metadata": metadata, "spec": {"model": model, "server": {"apiKeySecret": "../x"}}})
    assert (deployment.spec.model.token_secret, deployment.spec.server.api_key_secret) == ("My_Token", "../x")
    assert ModelCache.load({"metadata": metadata, "spec": model}).spec.token_secret == "My_Token"
