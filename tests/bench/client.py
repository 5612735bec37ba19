"""Streams one completion, or several at once, and times the tokens. Both sides of every comparison use this client.

It runs as a file, with only the standard library, on the endpoint's machine, so that nothing else is measured. It prints one
JSON object: ``first`` and ``last``, seconds from its start to the first and last token; ``wall``, when the first token came, in
seconds since 1970; ``tokens``, their number. For several at once it prints ``answers``, a list of these, and ``seconds``, from
the start to the last token of all.
"""

import http.client
import json
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

RETRY_SECONDS = 0.05
ANSWER_SECONDS = 120


class NotYet(Exception):
    """The server does not serve yet."""


def ask(url: str, body: dict[str, Any], began: float | None = None) -> dict[str, Any]:
    """Sends one streamed request. ``began``: the monotonic time of the first try, None for now.

    Raises NotYet when the server does not listen, asks to retry or does not serve the model; ValueError for any other bad
    response.
    """
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=ANSWER_SECONDS)
    try:
        began = time.monotonic() if began is None else began
        try:
            connection.request("POST", f"{at.path}/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
        except (ConnectionError, http.client.BadStatusLine) as error:
            raise NotYet(str(error)) from error
        if answer.status in (404, 503):
            # 404: a router that does not know the model yet.
            raise NotYet(f"{answer.status} {answer.read(2000).decode(errors='replace')}")
        if answer.status != 200:
            raise ValueError(f"{url}: {answer.status} {answer.read(2000).decode(errors='replace')}")
        first = last = wall = 0.0
        tokens, usage = 0, 0
        for line in answer:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(f"{url}: {event['error']}")
            usage = (event.get("usage") or {}).get("completion_tokens", usage)
            # A chunk for each token: both servers decode one token at a time, and every token here has text.
            if any((choice.get("delta") or {}).get("content") for choice in event.get("choices", [])):
                tokens += 1
                last = time.monotonic() - began
                if tokens == 1:
                    first, wall = last, time.time()
        if not tokens:
            raise ValueError(f"{url}: the answer had no token")
        return {"first": first, "last": last, "wall": wall, "chunks": tokens, "tokens": usage or tokens}
    finally:
        connection.close()


def ask_at_once(url: str, body: dict[str, Any], clients: int, seed: int) -> dict[str, Any]:
    """``clients`` streams at once, each of another prompt: It starts with ``seed``, so no part of it is cached.

    Raises ValueError or NotYet as ``ask`` does, when any of them fails; NotYet not at once.
    """
    together = threading.Barrier(clients)
    answers: list[dict[str, Any]] = []
    failures: list[Exception] = []

    def one(number: int) -> None:
        *before, last = body["messages"]
        asked = {**body, "messages": [*before, {**last, "content": f"{seed}/{number}: {last['content']}"}]}
        together.wait(ANSWER_SECONDS)
        began = time.monotonic()
        while True:
            try:
                answers.append(ask(url, asked, began))
            except NotYet as error:
                # A server with a short accept queue resets some of many connections: those are retried.
                if time.monotonic() - began < ANSWER_SECONDS:
                    time.sleep(RETRY_SECONDS)
                    continue
                failures.append(error)
            except (ValueError, OSError) as error:
                failures.append(error)
            return

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {"answers": answers, "seconds": max(answer["last"] for answer in answers)}


def main(arguments: list[str]) -> int:
    """``client.py URL SECONDS BODY [CLIENTS SEED]``: repeats the request for up to SECONDS until it is served."""
    url, seconds, body = arguments[0], float(arguments[1]), json.loads(arguments[2])
    at_once = [int(word) for word in arguments[3:5]]
    until = time.monotonic() + seconds
    while True:
        try:
            print(json.dumps(ask_at_once(url, body, *at_once) if at_once else ask(url, body)))
            return 0
        except NotYet as error:
            if time.monotonic() > until:
                print(f"{url} does not serve after {seconds:g} s: {error}", file=sys.stderr)
                return 1
            time.sleep(RETRY_SECONDS)
        except (ValueError, OSError) as error:
            print(str(error), file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
