"""Errors of ``thunderfleet-runner serve`` for invalid input, and the leader's history."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.exchange.group import LastWords
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_lib.host.sandbox import MOUNT_POINT_VARIABLE
from thunderfleet_runner import cli, supervisor
from thunderfleet_runner.group import history
from thunderfleet_runner.supervisor import Blocked, api_keys


def arguments(group: Any, **changes: str) -> list[str]:
    plan = group.folder / "plan.json"
    plan.write_text(group.plan.model_dump_json(by_alias=True))
    values = {
        "plan": str(plan), "keys": str(group.keys), "pod": "tiny-0-0", "node": "studio-0",
        "state-folder": str(group.folder / "state"), "api-keys": str(group.folder / "no-keys"), **changes,
    }  # fmt: skip
    return ["serve", *(part for name, value in values.items() for part in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"plan": "/nonexistent/plan.json"}, 2, "/nonexistent/plan.json"),
        ({"pod": "stranger"}, 2, "does not name pod stranger; it names tiny-0-0, tiny-0-1"),
        ({"node": "studio-9"}, 2, "on node studio-0, this is node studio-9"),
        ({"keys": "/nonexistent"}, 2, "/nonexistent/tls.crt"),
    ],
)
def test_bad_input_is_a_sentence_and_a_code(
    make_group: Callable[..., Any], caplog: pytest.LogCaptureFixture, changes: dict[str, str], code: int, words: str
) -> None:
    assert cli.main(arguments(make_group(2), **changes)) == code
    assert words in caplog.text


def test_a_rank_0_whose_control_port_is_taken_leaves_typed_last_words(
    make_group: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PORT_SECONDS", 0.0)
    monkeypatch.setenv(MOUNT_POINT_VARIABLE, str(tmp_path))
    group = make_group(2)
    entry = group.plan.ranks[0]
    left = tmp_path / "dev" / "termination-log"
    with socket.create_server((entry.address, entry.control_port)):
        assert cli.main(arguments(group)) == 1
        assert not left.exists(), "nobody reads it where no container runtime has made it"
        left.parent.mkdir()
        left.touch()
        assert cli.main(arguments(group)) == 1
    words = LastWords.parse(left.read_text())
    assert words is not None and (words.fault, words.reason) == (FaultClass.REPLAN, "PortTaken")
    assert f"the control port {entry.control_port} on {entry.address} is in use by another program" in words.message


def test_a_secret_without_a_key_stops_the_supervisor(
    make_group: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MOUNT_POINT_VARIABLE, str(tmp_path))
    left, keys = tmp_path / "dev" / "termination-log", tmp_path / "keys"
    left.parent.mkdir()
    left.touch()
    keys.mkdir()
    assert cli.main(arguments(make_group(2), **{"api-keys": str(keys)})) == 1
    words = LastWords.parse(left.read_text())
    assert words is not None and (words.fault, words.reason) == (FaultClass.CONFIGURE, "NoAPIKeys")


@pytest.mark.parametrize(
    "text", ["", "Traceback (most recent call last):\n  odd", "PortTaken (Odd): x", "PortTaken (Replan): ", "_a (Bug): x"]
)
def test_a_log_is_no_last_words(text: str) -> None:
    assert LastWords.parse(text) is None


def test_jaccls_own_exchange_needs_a_port_of_rank_0(make_group: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    group = make_group(2)
    told = group.plan.model_dump(mode="json", by_alias=True) | {"backend": "jaccl"}
    for entry, devices in zip(told["ranks"], ([None, "rdma_en2"], ["rdma_en2", None]), strict=True):
        entry |= {"ringAddress": None, "devices": devices}
    group.plan = Plan.model_validate(told)
    group.settings(0, jaccl_environment=True).check()
    told["ranks"][0]["ringPorts"] = []
    group.plan = Plan.model_validate(told)
    group.settings(0).check()
    assert cli.main([*arguments(group), "--jaccl-environment"]) == 2
    assert "--jaccl-environment needs ringPorts of rank 0" in caplog.text


def test_a_broken_plan_says_what_is_wrong(make_group: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    group = make_group(2)
    given = arguments(group)
    (group.folder / "plan.json").write_text(group.plan.model_dump_json(by_alias=True).replace('"ring"', '"carrier pigeon"'))
    assert cli.main(given) == 2
    assert "is not a valid plan" in caplog.text
    assert "'none', 'ring' or 'jaccl'" in caplog.text


@pytest.mark.parametrize("words", [["capabilities"], ["serve", "--help"]])
def test_what_every_agent_calls_at_its_start_needs_no_large_library_but_mlx(words: list[str]) -> None:
    code = (
        "import sys\nfrom thunderfleet_runner.cli import main\ntry:\n    main(sys.argv[1:])\nfinally:\n    print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=True)
    found = set(done.stdout.splitlines()[-1].split())
    assert "thunderfleet_runner.cli" in found
    assert found & {"aiohttp", "asyncio", "numpy", "pydantic", "ssl", "transformers"} == set()


def test_help_shows_defaults() -> None:
    command = [sys.executable, "-m", "thunderfleet_runner.cli", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "/etc/thunderfleet/keys" in done.stdout
    assert "(default:" in done.stdout


@pytest.mark.parametrize("text", ["0", "3-2", "x", "1-17"])
def test_a_bad_range_of_world_sizes_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["size", "/model", "--world-sizes", text])
    assert caught.value.code == 2
    assert "from 1 to 16" in capsys.readouterr().err


def test_every_value_of_the_secret_is_a_key(tmp_path: Path) -> None:
    data = tmp_path / "..2026"
    data.mkdir()
    (data / "first").write_text("one\n")
    (tmp_path / "..data").symlink_to(data)
    (tmp_path / "first").symlink_to("..data/first")
    (tmp_path / "second").write_text("two")
    assert api_keys(tmp_path) == {"one", "two"}
    assert api_keys(tmp_path / "absent") == frozenset()


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_secret_without_a_key_opens_nothing(tmp_path: Path, value: str | None) -> None:
    """An empty set of keys would mean that everybody may use the API."""
    if value is not None:
        (tmp_path / "first").write_text(value)
    with pytest.raises(Blocked, match="apiKeySecret has no value") as caught:
        api_keys(tmp_path)
    assert caught.value.fault.reason == Reason.NO_API_KEYS


def test_history_is_of_one_epoch_and_survives_rubbish(make_group: Callable[..., Any], tmp_path: Path) -> None:
    plan, path = make_group(2).plan, tmp_path / "history.json"
    assert history.load(path, plan) == history.History()
    history.save(path, plan, history.History(True, 4, "d", (300, 2600)))
    assert history.load(path, plan) == history.History(True, 4, "d", (300, 2600))
    earlier = json.loads(path.read_text())
    del earlier["digest"], earlier["lengths"]
    path.write_text(json.dumps(earlier))
    assert history.load(path, plan) == history.History(True, 4)
    assert history.load(path, plan.model_copy(update={"epoch": 4})) == history.History()
    path.write_text("[]")
    assert history.load(path, plan) == history.History()
