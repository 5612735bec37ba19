"""Every text is a value of basic types, or one kind of error."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_lib.host.yamltext import InvalidYamlError, load

TAGS = ("timestamp", "binary", "int", "float", "bool", "set", "omap", "pairs", "map", "seq", "null")
WORDS = [*(f"!!{tag}" for tag in TAGS), "<<", "=", "a:", "-", "?", "1", "x", "[", "]", "{", "}", ",", "2026-1-1", "\n"]
SPECIAL = (
    st.text(alphabet="[]{}:-&*!|>'\"#%@?, \n\tab0.<=~") | st.text() | st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
)
BASIC = (dict, list, str, int, float, bool, bytes, datetime.date, set, type(None))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [", 2, "expected"),
        ("a: 1\n\tb: 2", 2, "cannot start any token"),
        ("a: 2026-99-99", None, "month must be in 1..12"),
        ("a: *none", 1, "undefined alias"),
        ("a: !!python/object:os.system {}", 1, "could not determine a constructor"),
        ("a: b\n---\nc: d", 2, "but found another document"),
        ("? [a]\n: 1", 1, "unhashable key"),
        ("[" * 5000, None, "nested too deeply"),
        ("!!timestamp abc", None, "groupdict"),
        ("a: \x01", None, "special characters are not allowed"),
        ("1" * 5000, None, "digits"),
    ],
)
def test_errors_say_where(text: str, line: int | None, words: str) -> None:
    with pytest.raises(InvalidYamlError) as caught:
        load(text)
    assert caught.value.line == line and words in caught.value.problem and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"line {line}: ") == (line is not None)


@given(SPECIAL)
def test_any_text(text: str) -> None:
    try:
        assert isinstance(load(text), BASIC)
    except InvalidYamlError as error:
        assert error.problem
