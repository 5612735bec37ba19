"""What ``thunderfleet model`` shows."""

import pytest
from thunderfleet_cli.cli import parser
from thunderfleet_cli.model import view
from thunderfleet_crds.modelcache import ModelCache


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
    copies = [
        {"manifest": "m1", "repository": "owner/tiny", "commit": "c" * 40},
        {"manifest": "m2", "repository": "owner/old", "commit": "d" * 40},
    ]
    profiles = [{"metadata": {"name": name}, "status": {"copies": copies}} for name in ("a", "b")]
    rows = [view.row(cache()), *view.unreferenced([*profiles, {"metadata": {"name": "c"}}], [cache()])]
    lines = view.table(rows).splitlines()
    assert lines[1].split() == ["ns", "tiny", "owner/tiny", "1Gi", "1/2", "Fetched", "a"]
    assert lines[2].split() == ["-", "-", "owner/old@dddddddd", "-", "-", "Unreferenced", "a,b"]
    assert len(lines) == 3


def test_the_command_line() -> None:
    found = parser().parse_args(["model", "pull", "owner/tiny", "--copies", "3", "--token-secret", "hub", "--no-wait"])
    assert (found.model, found.copies, found.token_secret, found.no_wait) == ("owner/tiny", 3, "hub", True)
    assert parser().parse_args(["model", "list", "-A", "-o", "json"]).all_namespaces
    with pytest.raises(SystemExit):
        parser().parse_args(["model"])
