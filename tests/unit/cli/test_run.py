"""``thunderfleet run``: what it applies, how it waits, and how it talks to the endpoint."""

import asyncio
import io
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from thunderfleet_cli.cli import main
from thunderfleet_cli.connection import Connection, connect
from thunderfleet_cli.run import command
from thunderfleet_cli.run.chat import Conversation, NotServing
from thunderfleet_cli.run.manifest import manifest, name_for
from thunderfleet_cli.terminal import printable
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.names import MAX_NAME_LENGTH
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_localcluster.errors import LocalClusterError

Json = dict[str, Any]

MODEL = "mlx-community/Qwen3-30B-A3B-4bit"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (MODEL, "qwen3-30b-a3b-4bit"),
        ("a/Llama_3.1--8B.", "llama-3-1-8b"),
        ("a/30B-Qwen", "b-qwen"),
        ("tiny", "tiny"),
        ("a/" + "x" * 99, "x" * MAX_NAME_LENGTH),
        ("a/" + "x" * (MAX_NAME_LENGTH - 1) + "-y", "x" * (MAX_NAME_LENGTH - 1)),
        ("a/123", ""),
    ],
)
def test_names(model: str, name: str) -> None:
    assert name_for(model) == name


def test_the_manifest_of_a_uri_is_valid() -> None:
    uri, sha256 = "https://models.example.com/team/tiny-4bit/", "a" * 64
    found = ModelDeployment.load(manifest("ns", name_for(uri), uri, sha256))
    assert found.metadata.name == "tiny-4bit"
    assert (found.spec.model.repository, found.spec.model.uri, found.spec.model.sha256) == (None, uri, sha256)


def test_the_manifest_is_valid() -> None:
    assert ModelDeployment.load(manifest("ns", "qwen", MODEL)).spec.model.repository == MODEL


# --- the endpoint ------------------------------------------------------------------------------------------------------------


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@dataclass
class Endpoint:
    """Answers requests with ``answers``, one after the other."""

    url: str = ""
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    requests: list[Json] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    found = Endpoint()
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            found.headers.append(self.headers)
            status, body = found.answers.pop(0)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            found.requests.append({"path": self.path, "key": self.headers["Authorization"]})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield found
        server.shutdown()
        thread.join(10)


def ask(conversation: Conversation, endpoint: Endpoint, prompt: str) -> str:
    shown: list[str] = []
    conversation.ask(endpoint.url, prompt, shown.append)
    return "".join(shown)


def test_a_conversation_has_all_turns(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, event("Hel") + b": ping\n\n" + event("lo") + DONE), (200, event("Bye") + DONE)]
    conversation = Conversation(MODEL, None, None)
    assert ask(conversation, endpoint, "Hi") == "Hello"
    assert ask(conversation, endpoint, "Go") == "Bye"
    assert [(turn["role"], turn["content"]) for turn in endpoint.requests[1]["messages"]] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Go"),
    ]
    assert endpoint.requests[0] == {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    assert endpoint.headers[0]["Authorization"] is None


def test_what_a_group_waits_for_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts are those of pods and Macs, and an error may quote them."""
    command.say("  … waits for \x1b]0;title\x07pod\n")

    def fail(_: object) -> None:
        raise LocalClusterError("group 0: \x1b[2Jgone")

    monkeypatch.setattr(command, "run", fail)
    assert main(["run", "org/tiny"]) == 1
    assert capsys.readouterr().err == "  … waits for ]0;titlepod\n\nthunderfleet: group 0: [2Jgone\n"


def test_an_answer_cannot_control_the_terminal(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, event("a\x1b]0;title\x07b\r\n\tc\u202e\u00e9") + DONE)]
    assert ask(Conversation(MODEL, None, None), endpoint, "Hi") == "a]0;titleb\n\tc\u00e9"
    assert printable("日本 🙂") == "日本 🙂"


@pytest.mark.parametrize(
    ("status", "body", "error", "text"),
    [
        (503, b'{"error": {"message": "the group loads"}}', NotServing, "the group loads"),
        (502, b"<html>", NotServing, "<html>"),
        (200, event("half"), NotServing, "ended early"),
        (200, event("half") + b'data: {"error": {"message": "rank 1 ended"}}\n\n', NotServing, "rank 1 ended"),
        (
            400,
            b'{"error": {"message": "the prompt is too long"}}',
            LocalClusterError,
            r"refused \(400\): the prompt is too long",
        ),
        (401, b"", LocalClusterError, "set THUNDERFLEET_API_KEY"),
        (200, b"data: nonsense\n\n", LocalClusterError, "the endpoint sent an invalid response"),
        # What is elsewhere is another server's, which only this machine may reach, and it would get the key.
        *(
            (status, b"", LocalClusterError, rf"the endpoint answered with a redirect \({status}\)")
            for status in (301, 302, 307)
        ),
    ],
)
def test_a_turn_that_fails_is_forgotten(
    endpoint: Endpoint, status: int, body: bytes, error: type[LocalClusterError], text: str
) -> None:
    endpoint.answers = [(status, body), (200, event("ok") + DONE)]
    conversation = Conversation(MODEL, None, "secret")
    with pytest.raises(error, match=text) as caught:
        ask(conversation, endpoint, "Hi")
    assert (type(caught.value) is NotServing) == (error is NotServing)
    assert ask(conversation, endpoint, "Again") == "ok"
    assert len(endpoint.requests[1]["messages"]) == 1
    assert endpoint.headers[0]["Authorization"] == "Bearer secret"


def test_an_answer_that_the_user_stops_is_part_of_the_conversation(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, event("Hel") + event("lo") + DONE), (200, event("ok") + DONE)]
    conversation = Conversation(MODEL, None, None)

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversation.ask(endpoint.url, "Hi", stop)
    ask(conversation, endpoint, "Go on")
    assert [turn["content"] for turn in endpoint.requests[1]["messages"]] == ["Hi", "Hel", "Go on"]


def test_an_endpoint_that_is_gone(endpoint: Endpoint) -> None:
    with pytest.raises(NotServing, match=r"127\.0\.0\.1:1"):
        Conversation(MODEL, None, None).ask("http://127.0.0.1:1/v1", "Hi", print)


# --- the ModelDeployment -----------------------------------------------------------------------------------------------------


def deployment(*conditions: tuple[str, str, str], endpoint: str | None = None, model: str = MODEL) -> Json:
    return {
        "metadata": {"name": "qwen", "generation": 1},
        "spec": {"model": {"repository": model}},
        "status": {
            "endpoint": endpoint,
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": f"because of {reason}", "observedGeneration": 1}
                for kind, status, reason in conditions
            ],
        },
    }


class Server:
    """Stands in for ``Kube``: the states of the ModelDeployment, of which the last one stays."""

    def __init__(self, *states: Json | ApiError | None) -> None:
        self.states = list(states)
        self.applied: list[Json] = []

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def get_or_none(self, path: str) -> Json | None:
        assert path.endswith("/namespaces/ns/modeldeployments/qwen")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, ApiError):
            raise state
        return state

    async def apply(self, path: str, body: Json, manager: str, *, force: bool) -> Json:
        assert manager == "thunderfleet-run" and not force
        self.applied.append(body)
        return body


@dataclass(frozen=True)
class Fake(Connection):
    """A connection to ``server``."""

    server: Server | None = None

    async def kube(self) -> Kube:
        return cast(Kube, self.server)


Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """``thunderfleet run`` with these states of the ModelDeployment."""
    monkeypatch.setattr(command, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(command, "OBSTACLE_SECONDS", 0.05)

    def started(server: Server, *arguments: str) -> int:
        monkeypatch.setattr(command, "connect", lambda *_: Fake(Path("x"), None, "ns", None, server))
        return main(["run", MODEL, "--name", "qwen", *arguments])

    return started


READY = (
    ("ModelResolved", "True", "Found"),
    ("Placed", "True", "Placed"),
    ("Bootstrapped", "True", "x"),
    ("Ready", "True", "Ready"),
)
LOADS = (("ModelResolved", "True", "Found"), ("Placed", "True", "Placed"), ("Bootstrapped", "False", "Loading"))


def test_one_prompt(run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.answers = [(200, event("Hello") + DONE)]
    away = ApiError(0, "Unreachable", "cannot reach it")
    server = Server(None, deployment(*LOADS), away, deployment(*READY, endpoint=endpoint.url))
    assert run(server, "--prompt", "Hi") == 0
    said = capsys.readouterr()
    assert said.out == "Hello\n"
    for text in (
        "created ModelDeployment qwen",
        "Bootstrapped: because of Loading",
        "cannot reach it",
    ):
        assert text in said.err
    assert [body["spec"] for body in server.applied] == [{"model": {"repository": MODEL}}]


def test_a_prompt_from_standard_input(
    run: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answers = [(200, event("Hello") + DONE)]
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    server = Server(deployment(*READY, endpoint=endpoint.url))
    assert run(server) == 0
    assert endpoint.requests[0]["messages"][0]["content"] == "two\nlines\n"
    assert server.applied == [] and "using ModelDeployment qwen" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert run(server) == 2
    assert "the prompt is empty" in capsys.readouterr().err


def test_a_chat(run: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed turn does not end it, and Ctrl-D leaves the model serving."""
    answered = [(200, event(text) + DONE) for text in ("one", "two", "three")]
    endpoint.answers = [answered[0], (400, b'{"error": {"message": "too long"}}'), answered[1], answered[2]]
    lines = iter(["a", "", "b", "c", "/new", "d"])

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def typed(_: str) -> str:
        assert {signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)} == {signal.SIG_DFL}, "they end it"
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", typed)
    assert run(Server(deployment(*READY, endpoint=endpoint.url))) == 0
    said = capsys.readouterr()
    assert said.out == "one\ntwo\nthree\n"
    assert "refused (400): too long" in said.err and "qwen keeps serving" in said.err
    assert "kubectl delete md qwen -n ns" in said.err
    assert [len(request["messages"]) for request in endpoint.requests] == [1, 3, 3, 1]


def test_a_group_that_moves_is_asked_again(run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.answers = [(503, b'{"error": {"message": "the group forms"}}'), (200, event("Hello") + DONE)]
    assert run(Server(deployment(*READY, endpoint=endpoint.url)), "--prompt", "Hi") == 0
    said = capsys.readouterr()
    assert said.out == "Hello\n" and "the group forms; waiting until it serves again" in said.err


def test_a_status_from_before_a_loss_of_power_does_not_end_the_wait(
    run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = "http://127.0.0.1:1/v1"
    endpoint.answers = [(503, b'{"error": {"message": "the group loads"}}')] * 3 + [(200, event("Hello") + DONE)]
    before, after = deployment(*READY, endpoint=gone), deployment(*READY, endpoint=endpoint.url)
    server = Server(*[before] * 6, *[deployment(*LOADS)] * 4, after)
    assert run(server, "--prompt", "Hi") == 0
    said = capsys.readouterr()
    assert said.out == "Hello\n" and said.err.count("cannot reach http://127.0.0.1:1/v1") == 1
    assert said.err.count("the group loads; waiting until it serves again") == 1


def test_a_machine_that_never_reaches_the_endpoint_gives_up(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "STALE_SECONDS", 0.05)
    assert run(Server(deployment(*READY, endpoint="http://127.0.0.1:1/v1")), "--prompt", "Hi") == 1
    assert "run `thunderfleet run` on a machine in the network of the Macs" in capsys.readouterr().err


def test_an_answer_that_breaks_off_twice_is_not_requested_again(
    run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answers = [(200, event("one ")), (200, event("two "))]
    assert run(Server(deployment(*READY, endpoint=endpoint.url)), "--prompt", "Hi") == 1
    assert "ended early" in capsys.readouterr().err and len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "conditions",
    [
        (("ModelResolved", "False", "ModelNotFound"),),
        (("ModelResolved", "True", "Found"), ("Placed", "False", "NotEnoughMacs")),
    ],
)
def test_a_model_that_cannot_be_placed_ends_with_three(
    run: Run, conditions: tuple[tuple[str, str, str], ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(Server(deployment(*conditions)), "--prompt", "Hi") == 3
    said = capsys.readouterr().err
    reason = conditions[-1][2]
    assert f"{reason}: because of {reason}; the ModelDeployment was not deleted" in said


@pytest.mark.parametrize(
    ("state", "code", "text"),
    [
        (deployment(*LOADS), 1, "not ready after 0.1 s: Bootstrapped: because of Loading"),
        (deployment(*READY, model="other/model"), 2, "serves other/model; use another --name"),
        (ApiError(404, "NotFound", "the server could not find the requested resource"), 1, "install the chart"),
        (ApiError(403, "Forbidden", "you cannot"), 1, "cannot use md qwen -n ns: you cannot"),
    ],
)
def test_what_ends_the_wait(run: Run, state: Json | ApiError, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Server(state), "--prompt", "Hi", "--timeout", "0.1") == code
    assert text in capsys.readouterr().err


def test_a_reader_that_has_enough_ends_the_answer(run: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `thunderfleet run … | head`; the endpoint is not at fault, so it is not asked again."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    endpoint.answers = [(200, event("Hel") + event("lo") + DONE)]
    monkeypatch.setattr("sys.stdout", Closed())
    monkeypatch.setattr("os.dup2", lambda *_: 0)
    with pytest.raises(SystemExit) as caught:
        run(Server(deployment(*READY, endpoint=endpoint.url)), "--prompt", "Hi")
    assert caught.value.code == 1 and len(endpoint.requests) == 1


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "x"])
def test_the_wait_has_a_limit(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", MODEL, f"--timeout={timeout}"])
    assert caught.value.code == 2


def test_a_model_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a/123"]) == 2
    assert "set --name" in capsys.readouterr().err


# --- the cluster -------------------------------------------------------------------------------------------------------------


def kubeconfig(folder: Path, **context: str) -> Path:
    contexts = [
        {"name": "one", "context": {"cluster": "c", "user": "u", **context}},
        {"name": "two", "context": {"cluster": "c", "user": "u"}},
    ]
    file = folder / "kubeconfig"
    parts = {"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}]}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "one", "contexts": contexts, **parts}))
    return file


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, namespace="mine")
    assert connect(file, None, None) == Connection(file, None, "mine", None)
    assert connect(file, "two", None).namespace == "default"
    assert connect(file, None, "given").namespace == "given"
    with pytest.raises(LocalClusterError, match="no context 'three'; contexts: one, two"):
        connect(file, "three", None)


@pytest.mark.parametrize("text", ["a: [", "a: 2026-99-99", "[" * 5000, "!!timestamp x", "- a", "contexts: 1", ""])
@pytest.mark.parametrize("namespace", [None, "given"])
async def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, text: str, namespace: str | None) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(LocalClusterError, match=f"cannot use kubeconfig {file}: ") as caught:
        await connect(file, None, namespace).kube()
    assert caught.value.usage


def test_the_kubeconfig_of_a_local_cluster_brings_its_proxy(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps({"kubeconfig": str(file), "proxy": "http://x:y@127.0.0.1:2"}))
    assert connect(file, None, None).proxy == "http://x:y@127.0.0.1:2"
    (tmp_path / "cluster.json").write_text(json.dumps({"kubeconfig": "/other", "proxy": "http://x:y@127.0.0.1:2"}))
    assert connect(file, None, None).proxy is None


def test_which_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / ".kube").mkdir()
    usual = kubeconfig(tmp_path).rename(tmp_path / ".kube/config")
    assert connect(None, None, None).kubeconfig == usual
    monkeypatch.setenv("KUBECONFIG", str(other := kubeconfig(tmp_path)))
    assert connect(None, None, None).kubeconfig == other
    with pytest.raises(LocalClusterError, match="cannot use kubeconfig"):
        connect(tmp_path / "missing", None, None)
    asyncio.run(_closed(connect(None, None, None)))


async def _closed(connection: Connection) -> None:
    async with await connection.kube() as kube:
        assert kube.host == "https://127.0.0.1:1"
