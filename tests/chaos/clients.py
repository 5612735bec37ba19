"""Clients that send requests to a deployment throughout a fault, and judge the responses.

A 200 must be complete: the token ids of one mlx-lm process and an end, or an error event. A stream may break off without an
error event only if the fault hit the process or Mac that was sending it.
"""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from tests.support.network.proxy import proxy_headers

ANSWER_SECONDS = 60.0
PAUSE_SECONDS = 0.3
REST_SECONDS = 5.0
"""A client that got a long answer rests for as long as the answer took, and this long at most."""
READY_SECONDS = 10.0
"""A client waits this long at most for a group that says it is ready, first and after every request that failed."""
PROBE_SECONDS = 2.0


class Outcome(StrEnum):
    """How a request ended."""

    WHOLE = "whole"
    ERROR_EVENT = "ended by an error event"
    REFUSED = "refused with an error status"
    UNREACHABLE = "no response"
    CUT = "broke off"
    WRONG = "wrong"


@dataclass(frozen=True)
class Question:
    """A prompt, and the token ids that a single mlx-lm process generates for it."""

    prompt: str
    tokens: int
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """One judged response."""

    outcome: Outcome
    detail: str = ""
    tokens: int = 0


def judge_status(status: int, headers: Mapping[str, str], body: bytes) -> Result:
    """A status other than 200: needs an error in OpenAI's shape, and a 503 needs Retry-After."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return Result(Outcome.WRONG, f"{status} without an error object: {body[:200]!r}")
    if not message or (status == 503 and "Retry-After" not in headers):
        return Result(Outcome.WRONG, f"{status} without a message or Retry-After: {body[:200]!r}")
    return Result(Outcome.REFUSED, f"{status}: {message}")


def judge_whole(body: bytes, question: Question) -> Result:
    """A 200 that is not streamed."""
    try:
        choice = json.loads(body)["choices"][0]
        ids = tuple(choice["token_ids"])
    except (ValueError, KeyError, TypeError, IndexError):
        return Result(Outcome.WRONG, f"200 without an answer: {body[:200]!r}")
    if ids != question.answer or not choice.get("finish_reason"):
        return Result(Outcome.WRONG, f"200 with other tokens: {ids} instead of {question.answer}")
    return Result(Outcome.WHOLE, tokens=len(ids))


@dataclass
class Reading:
    """The part of a streamed response that has arrived."""

    question: Question
    ids: list[int] = field(default_factory=list)
    finish: str = ""
    done: bool = False
    error: str = ""

    def event(self, data: str) -> str:
        """Takes one event and returns what is wrong with it."""
        if self.done or self.error:
            return f"an event after the end: {data[:200]}"
        if data == "[DONE]":
            self.done = True
            return "" if self.finish else "[DONE] without a finish reason"
        try:
            found = json.loads(data)
        except ValueError:
            return f"an event that is no JSON: {data[:200]!r}"
        if "error" in found:
            self.error = str(found["error"].get("message") or "")
            return "" if self.error else "an error event without a message"
        for choice in found.get("choices", []):
            self.ids += choice.get("token_ids") or []
            self.finish = choice.get("finish_reason") or self.finish
        if tuple(self.ids) != self.question.answer[: len(self.ids)]:
            return f"wrong tokens in a stream: {self.ids} instead of {self.question.answer}"
        return ""

    def end(self, cleanly: bool, why: str) -> Result:
        """The connection has ended: cleanly, as HTTP defines it, or not."""
        got = len(self.ids)
        if self.done:
            if tuple(self.ids) != self.question.answer:
                return Result(Outcome.WRONG, f"[DONE] after {got} tokens of {len(self.question.answer)}")
            return Result(Outcome.WHOLE, tokens=got)
        if self.error:
            return Result(Outcome.ERROR_EVENT, self.error, got)
        if cleanly:
            return Result(Outcome.WRONG, f"a stream ended as if complete after {got} tokens, without [DONE] or an error")
        return Result(Outcome.CUT, f"after {got} tokens: {why}", got)


def pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """A body as it arrives; unlike reading by lines, this raises if the body ends early."""
    while data := response.read1(65536):
        yield data


class Clients:
    """Threads that send requests in a loop. ``endpoint`` is called before each one.

    While ``long`` is set, those that read streams ask ``questions``, whose answers are long; all others ask ``brief``.
    """

    def __init__(
        self, proxy: str, endpoint: Callable[[], str], model: str, questions: Sequence[Question], brief: Question
    ) -> None:
        self._proxy, self._proxy_headers = urlsplit(proxy), proxy_headers(proxy)
        self._endpoint = endpoint
        self._model = model
        self._questions, self._brief = questions, brief
        self.long = True
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.results: list[Result] = []
        self.in_stream: dict[int, int] = {}
        """By client that reads a stream: the number of tokens so far."""

    def start(self, streaming: int, whole: int) -> None:
        for number in range(streaming + whole):
            thread = threading.Thread(target=self._run, args=(number, number < streaming), daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def started(self) -> bool:
        return bool(self._threads)

    def stop(self) -> list[str]:
        """Lets running requests end; returns the clients that did not end in time."""
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS + 10)
        return [f"client {number} hangs" for number, thread in enumerate(self._threads) if thread.is_alive()]

    def ask(self, question: Question) -> Result:
        """One answer, not streamed."""
        return self._ask(0, question, False)

    def counts(self) -> Counter[str]:
        return Counter(result.outcome.value for result in self.results)

    def whole(self) -> int:
        """The number of whole answers so far."""
        return sum(result.outcome is Outcome.WHOLE for result in list(self.results))

    def _run(self, number: int, stream: bool) -> None:
        turn = number
        self._until_ready()
        while not self._over.is_set():
            if not self._endpoint():
                self._until_ready()
                continue
            question = self._questions[turn % len(self._questions)] if stream and self.long else self._brief
            turn += 1
            began = time.monotonic()
            result = self._ask(number, question, stream)
            took = time.monotonic() - began
            with self._lock:
                self.in_stream.pop(number, None)
                self.results.append(result)
            if result.outcome is not Outcome.WHOLE:
                self._until_ready()
            else:
                # Ranks that never rest take the processor that recovery needs.
                self._over.wait(PAUSE_SECONDS if question is self._brief else min(took, REST_SECONDS))

    def _until_ready(self) -> None:
        """Waits as a load balancer does before it sends requests again; asks anyway in the end."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._over.wait(PAUSE_SECONDS) and time.monotonic() < deadline:
            if self._ready():
                return

    def _ready(self) -> bool:
        endpoint = self._endpoint()
        if not endpoint:
            return False
        at = urlsplit(endpoint)
        connection = http.client.HTTPConnection(self._proxy.hostname or "", self._proxy.port, timeout=PROBE_SECONDS)
        try:
            connection.request(
                "GET", f"{at.scheme}://{at.netloc}/readyz", headers={"Connection": "close", **self._proxy_headers}
            )
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _ask(self, number: int, question: Question, stream: bool) -> Result:
        endpoint = self._endpoint()
        if not endpoint:
            return Result(Outcome.UNREACHABLE, "there is no endpoint yet")
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": question.prompt}],
            "max_tokens": question.tokens,
            "temperature": 0,
            "return_token_ids": True,
            "stream": stream,
        }
        connection = http.client.HTTPConnection(self._proxy.hostname or "", self._proxy.port, timeout=ANSWER_SECONDS)
        try:
            try:
                headers = {"Content-Type": "application/json", "Connection": "close", **self._proxy_headers}
                connection.request("POST", f"{endpoint}/chat/completions", json.dumps(body), headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                return Result(Outcome.UNREACHABLE, repr(error))
            if response.status in (502, 504) and not response.getheader("Content-Type", "").startswith("application/json"):
                return Result(Outcome.UNREACHABLE, f"the proxy says {response.status}")
            try:
                if response.status != 200:
                    return judge_status(response.status, dict(response.headers), response.read())
                if not stream:
                    return judge_whole(response.read(), question)
            except (OSError, http.client.HTTPException) as error:
                return Result(Outcome.CUT, repr(error))
            return self._read(number, response, question)
        finally:
            connection.close()

    def _read(self, number: int, response: http.client.HTTPResponse, question: Question) -> Result:
        reading, rest = Reading(question), b""
        try:
            for data in pieces(response):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: ") and (wrong := reading.event(line[6:].decode())):
                        return Result(Outcome.WRONG, wrong)
                with self._lock:
                    self.in_stream[number] = len(reading.ids)
        except (OSError, http.client.HTTPException) as error:
            return reading.end(False, repr(error))
        return reading.end(True, "")
