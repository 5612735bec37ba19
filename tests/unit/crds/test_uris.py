"""The URI of a folder: the schema of the CRD and the models agree, and it names nothing but a folder on a host."""

import re
from functools import cache
from pathlib import Path

import pytest
from pydantic import ValidationError
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.uris import host_of, is_listed, not_allowed

from tests.support import yamltext

ROOT = Path(__file__).parents[3]
SHA256 = "a" * 64
GOOD = (
    "https://models.example.com/",
    "https://models.example.com/team/Qwen3-8B_4bit~v1.2/",
    "https://models.example.com:8443/a/",
    "https://10.0.0.1/a/",
    "https://h/a/",
)
BAD = (
    "",
    "https://models.example.com",
    "https://models.example.com/a",
    "http://models.example.com/a/",
    "s3://models.example.com/a/",
    "HTTPS://models.example.com/a/",
    "https://Models.example.com/a/",
    "https://user@models.example.com/a/",
    "https://user:word@models.example.com/a/",
    "https://models.example.com/a/?x=y",
    "https://models.example.com/a/#x",
    "https://models.example.com/a//",
    "https://models.example.com/../a/",
    "https://models.example.com/./a/",
    "https://models.example.com/%2e%2e/",
    "https://models.example.com/.git/",
    "https://models.example.com./a/",
    "https://models.example.com:0/a/",
    "https://models.example.com:/a/",
    "https://[::1]/a/",
    "https://models.example.com\\@evil.example.com/a/",
    "https://models.example.com/a/\n",
    "https://mödels.example.com/a/",
    "https://models.example.com/" + "a/" * 200,
)


@cache
def rule(kind: str, *path: str) -> str:
    whole = yamltext.load((ROOT / "crds" / f"thunderfleet.io_{kind}.yaml").read_text())
    node = whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path:
        node = node["properties"][name]
    (found,) = node["x-kubernetes-validations"]
    pattern = re.fullmatch(r"self\.matches\('(.*)'\)", found["rule"])
    assert pattern is not None and node["maxLength"]
    return pattern[1]


@pytest.mark.parametrize("uri", [*GOOD, *BAD])
def test_models_and_schema_agree(uri: str) -> None:
    good = uri in GOOD
    metadata = {"name": "tiny", "namespace": "ns"}
    source = {"uri": uri, "sha256": SHA256}
    for kind, spec in ((ModelCache, source), (ModelDeployment, {"model": source})):
        if good:
            kind.load({"metadata": metadata, "spec": spec})
        else:
            with pytest.raises(ValidationError):
                kind.load({"metadata": metadata, "spec": spec})
    for pattern in (rule("modelcaches", "uri"), rule("modeldeployments", "model", "uri")):
        # RE2 has no end of a line before the end of the text.
        assert (re.search(pattern.removesuffix("$") + r"\Z", uri) is not None and len(uri) <= 400) == good


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_other_hashes_are_refused(digest: str) -> None:
    with pytest.raises(ValidationError, match="SHA256SUMS"):
        ModelCache.load({"metadata": {"name": "a"}, "spec": {"uri": GOOD[0], "sha256": digest}})


def test_a_host_is_listed_with_its_port() -> None:
    assert host_of("https://h.example.com/a/") == host_of("https://h.example.com:443/a/") == "h.example.com"
    assert host_of("https://h.example.com:8443/a/") == "h.example.com:8443"
    assert is_listed("h.example.com", ["h.example.com:443"]) and is_listed("h.example.com", ["h.example.com"])
    for host in ("h.example.com:8443", "example.com", "a.h.example.com", ""):
        assert not is_listed(host, ["h.example.com"])
        assert f"are not allowed to fetch models from {host}" in (not_allowed(host, ["h.example.com"]) or "")
