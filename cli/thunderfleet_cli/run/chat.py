"""A conversation with the endpoint of a ModelDeployment, as OpenAI's API streams it."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from thunderfleet_localcluster.errors import LocalClusterError

from thunderfleet_cli.terminal import printable

ANSWER_SECONDS = 300.0
"""Maximum silence of a stream. Long, because of the first token of a long prompt."""
LINE_BYTES = 1 << 20
ERROR_BYTES = 64 << 10

Json = dict[str, Any]


class NotServing(LocalClusterError):
    """The group does not serve at the moment; another attempt may succeed."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it could lead to a server that only this machine can reach, and the key would go there too."""

    def redirect_request(self, *_: object) -> None:
        """No request follows."""


class Conversation:
    """Messages so far with one model. ``proxy``: see ``Connection``. ``key``: the API key, if the model has one."""

    def __init__(self, model: str, proxy: str | None, key: str | None) -> None:
        self._model = model
        self._key = key
        handler = urllib.request.ProxyHandler({"http": proxy} if proxy else None)
        self._opener = urllib.request.build_opener(handler, _NoRedirects)
        self.messages: list[Json] = []

    def ask(self, endpoint: str, prompt: str, show: Callable[[str], None]) -> None:
        """Sends ``prompt`` and shows the answer as it arrives. A failed turn is not kept. Raises LocalClusterError."""
        turn = [*self.messages, {"role": "user", "content": prompt}]
        body = {"model": self._model, "messages": turn, "stream": True}
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(f"{endpoint}/chat/completions", json.dumps(body).encode(), headers)
        answer: list[str] = []
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as response:
                for piece in _pieces(response):
                    answer.append(piece)
                    show(printable(piece))
        except KeyboardInterrupt:
            # The user has read this part of the answer, and may refer to it.
            self._keep(turn, answer)
            raise
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(ERROR_BYTES)) from None
        except (OSError, http.client.HTTPException) as error:
            raise NotServing(
                f"cannot reach {endpoint} from this machine: {error}; run `thunderfleet run` on a machine in the network of "
                "the Macs"
            ) from error
        self._keep(turn, answer)

    def _keep(self, turn: list[Json], answer: list[str]) -> None:
        if answer:
            self.messages = [*turn, {"role": "assistant", "content": "".join(answer)}]


def _pieces(response: http.client.HTTPResponse) -> Iterator[str]:
    while line := response.readline(LINE_BYTES):
        if not line.startswith(b"data: "):
            continue
        data = line[len(b"data: ") :].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise LocalClusterError(f"the endpoint sent an invalid response: {error}") from error
        if "error" in event:
            raise NotServing(f"the answer ended with an error: {_message(event)}")
        for choice in event.get("choices") or []:
            if piece := (choice.get("delta") or {}).get("content"):
                yield str(piece)
    raise NotServing("the answer ended early: the group has stopped")


def _message(body: Json) -> str:
    error = body.get("error")
    return str(error.get("message")) if isinstance(error, dict) else str(error)


def _refusal(status: int, body: bytes) -> LocalClusterError:
    try:
        found = json.loads(body)
        text = _message(found) if isinstance(found, dict) else ""
    except ValueError:
        text = body.decode("utf-8", "replace").strip()[:500]
    if status == 401:
        return LocalClusterError("the model requires an API key: set THUNDERFLEET_API_KEY to one that it accepts", usage=True)
    if 300 <= status < 400:
        return LocalClusterError(f"the endpoint answered with a redirect ({status}), which is not followed")
    if status in (502, 503, 504):
        return NotServing(f"the group does not serve now: {text or status}")
    return LocalClusterError(f"the request was refused ({status}): {text}")
