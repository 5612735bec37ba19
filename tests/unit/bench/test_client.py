"""The client of both sides of a comparison, against small servers with all kinds of responses."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.bench import client

Answer = Callable[[BaseHTTPRequestHandler], None]


asked: list[bytes] = []
"""Every received body."""


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Starts a server with scripted answers; returns its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(self.rfile.read(int(self.headers["Content-Length"])))
                answer(self)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def stream(*events: object) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for event in events:
            handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        handler.wfile.write(b": a comment\n\ndata: [DONE]\n\n")

    return answer


def piece(text: str) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}}]}


def test_tokens_are_counted_and_timed(serve: Callable[[Answer], str]) -> None:
    url = serve(stream({"choices": [{"delta": {"role": "assistant"}}]}, piece("a"), piece("b"), piece("c"), {"choices": []}))
    found = client.ask(url, {})
    assert (found["chunks"], found["tokens"]) == (3, 3)
    assert 0 < found["first"] <= found["last"]


def test_usage_says_how_many_tokens_there_were(serve: Callable[[Answer], str]) -> None:
    url = serve(stream(piece("a"), {"choices": [], "usage": {"completion_tokens": 5}}))
    assert client.ask(url, {})["tokens"] == 5


def test_an_error_in_the_stream_is_not_an_answer(serve: Callable[[Answer], str]) -> None:
    url = serve(stream(piece("a"), {"error": {"message": "the group failed"}}))
    with pytest.raises(ValueError, match="the group failed"):
        client.ask(url, {})


def test_an_answer_without_tokens_is_an_error(serve: Callable[[Answer], str]) -> None:
    with pytest.raises(ValueError, match="no token"):
        client.ask(serve(stream()), {})


@pytest.mark.parametrize("status", [404, 503])
def test_a_status_and_a_closed_port_mean_not_yet(serve: Callable[[Answer], str], status: int) -> None:
    with pytest.raises(client.NotYet, match=str(status)):
        client.ask(serve(lambda handler: handler.send_error(status)), {})
    with pytest.raises(client.NotYet):
        client.ask("http://127.0.0.1:1/v1", {})


def test_a_refusal_is_an_error_with_its_text(serve: Callable[[Answer], str]) -> None:
    with pytest.raises(ValueError, match="400"):
        client.ask(serve(lambda handler: handler.send_error(400)), {})


def test_it_asks_again_until_it_is_served(serve: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]) -> None:
    asked.clear()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if len(asked) < 3:
            handler.send_error(503)
        else:
            stream(piece("a"))(handler)

    assert client.main([serve(answer), "30", "{}"]) == 0
    assert len(asked) == 3
    assert json.loads(capsys.readouterr().out)["chunks"] == 1


def test_it_gives_up_with_a_sentence(serve: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(lambda handler: handler.send_error(503))
    assert client.main([url, "0", "{}"]) == 1
    assert f"{url} does not serve after 0 s" in capsys.readouterr().err


def test_several_at_once_ask_for_different_things(serve: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]) -> None:
    asked.clear()
    together = threading.Barrier(4)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        # The server answers when all four requests have arrived.
        together.wait(30)
        stream(piece("a"), piece("b"))(handler)

    url = serve(answer)
    assert client.main([url, "30", json.dumps({"messages": [{"role": "user", "content": "hi"}]}), "4", "7"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["tokens"] for one in found["answers"]] == [2] * 4
    assert found["seconds"] == max(one["last"] for one in found["answers"])
    prompts = {json.loads(body)["messages"][-1]["content"] for body in asked}
    assert prompts == {f"7/{number}: hi" for number in range(4)}
    # One failed stream fails all.
    failing = serve(lambda handler: handler.send_error(400))
    assert client.main([failing, "0", json.dumps({"messages": [{"role": "user", "content": "hi"}]}), "2", "8"]) == 1
