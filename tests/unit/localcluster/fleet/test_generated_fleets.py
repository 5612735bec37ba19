"""Generated fleet files: each is a fleet, or an error that names the file."""

import random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import DEFAULT_FLEET, parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.fleet.spec import Cable, Machine

MACHINE_KEYS, CABLE_KEYS = (
    sorted(field.alias or name for name, field in kind.model_fields.items()) for kind in (Machine, Cable)
)
VALUES = st.sampled_from(
    ["a", "b", "a:1", "b:2", "a:99", "Mac Studio (M3 Ultra)", "Mac mini (M4)", "linux", "mac", "96 GB", "recorded"]
) | st.sampled_from([80, 40, "120/40", 0, -1, 2**63, 1e308, True, None, "", ":", "10.64.1.1", "192.168.64.11", "::1"])
ANY = st.recursive(
    VALUES | st.text(max_size=8) | st.floats(), lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=3), of)
)


def objects(keys: list[str]) -> st.SearchStrategy[object]:
    return st.dictionaries(st.sampled_from(keys) | st.text(max_size=3), VALUES | ANY, max_size=6) | ANY


FLEETS = st.fixed_dictionaries(
    {},
    optional={
        "machines": st.lists(objects(MACHINE_KEYS), max_size=4) | ANY,
        "cables": st.lists(objects(CABLE_KEYS), max_size=4) | ANY,
        "other": ANY,
    },
)


def read(text: str) -> bool:
    """Whether the file is a fleet; if it is one, addresses can be given to its machines."""
    try:
        fleet = parse_fleet(text, "my.yaml")
    except LocalClusterError as error:
        assert error.usage and all(line.startswith("my.yaml:") for line in str(error).splitlines()[:1])
        return False
    plan_layout(fleet, "namespaces")
    return True


@given(FLEETS)
def test_values_of_any_kind(value: object) -> None:
    read(yaml.safe_dump(value))


@given(st.text() | st.text(alphabet="[]{}:-&*!|>'\"#%@?, \n\tab0."))
def test_any_text(text: str) -> None:
    read(text)


@given(st.integers(0, len(DEFAULT_FLEET)), st.integers(0, 40), st.text(max_size=6), st.randoms(use_true_random=False))
def test_a_fleet_of_which_something_is_replaced(start: int, length: int, text: str, source: random.Random) -> None:
    changed = DEFAULT_FLEET[:start] + text + DEFAULT_FLEET[start + length :]
    read(changed)
    lines = changed.splitlines()
    source.shuffle(lines)
    read("\n".join(lines))


@pytest.mark.parametrize("text", ["[" * 5000, "a: " * 5000, "- " * 5000, "{a: " * 5000, "&a [" + "*a, " * 5000 + "]"])
def test_a_deep_one(text: str) -> None:
    assert not read(text)


def test_aliases_that_would_multiply() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert not read("\n".join([*lines, "machines: *a29"]))
