"""What kubectl is offered when somebody presses Tab after ``kubectl thunderfleet``."""

from collections.abc import Mapping

import pytest
from thunderfleet_cli.completion import FILES, NO_FILES, completed, lookup

NAMES = {"deployment": ["chat", "code"], "namespace": ["default", "team"], "without": ["studio-1"], "context": ["x"]}
asked: list[tuple[str, dict[str, str]]] = []


def known(dest: str, options: Mapping[str, str]) -> list[str]:
    asked.append((dest, dict(options)))
    return NAMES.get(dest, [])


def choices(*words: str) -> list[str]:
    return [line.partition("\t")[0] for line in completed(words, known)]


def test_commands_have_descriptions() -> None:
    lines = list(completed([""], known))
    assert lines[-1] == NO_FILES
    assert {"why\texplain the state of a ModelDeployment, down to the first cause"} <= set(lines)
    assert {"status", "topology", "why", "cables", "top", "plan", "logs", "events"} <= {line.split("\t")[0] for line in lines}
    assert set(choices("to")) == {"topology", "token", "top", NO_FILES}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("why", ""), ["chat", "code", NO_FILES]),
        (("why", "co"), ["code", NO_FILES]),
        (("why", "chat", ""), [NO_FILES]),
        (("topology", "-o", ""), ["text", "json", "svg", NO_FILES]),
        (("topology", "--output=s"), ["--output=svg", NO_FILES]),
        (("status", "-n", "t"), ["team", NO_FILES]),
        (("status", "--kubeconfig", ""), [FILES]),
        (("plan", "-f", ""), [FILES]),
        (("plan", "--without", ""), ["studio-1", NO_FILES]),
        (("status", "--con"), ["--context", NO_FILES]),
        (("model", "pu"), ["pull", NO_FILES]),
        (("nonsense", "x", "--what"), [NO_FILES]),
        (("status", "--nonsense=x", ""), [NO_FILES]),
        ((), choices("")),
    ],
)
def test_what_is_offered(words: tuple[str, ...], expected: list[str]) -> None:
    assert choices(*words) == expected


def test_options_before_a_name_say_where_to_look() -> None:
    asked.clear()
    assert choices("why", "-n", "team", "--context=x", "c") == ["chat", "code", NO_FILES]
    assert asked == [("deployment", {"namespace": "team", "context": "x"})]


def test_nothing_is_offered_or_said_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(lookup("deployment", {"kubeconfig": "/nonexistent"})) == []
    assert capsys.readouterr() == ("", "")
