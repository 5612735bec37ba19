"""A client of its own process: sends request bodies of the largest size, all at once. argv: the URL, the shapes.

Prints the statuses as JSON; 0 stands for a connection that the server closed.
"""

import asyncio
import json
import sys

import aiohttp

SIZE = 16 * 1024 * 1024
"""The largest body that a gateway reads."""
HEAD = b'{"model": "thunderfleet/tiny", "max_tokens": 1, "prompt": '
CALLS = (
    b'{"model": "thunderfleet/tiny", "messages": [{"role": "assistant", '
    b'"tool_calls": [{"function": {"name": "f", "arguments": "['
)


def _filled(begin: bytes, piece: bytes, end: bytes) -> bytes:
    return begin + piece * ((SIZE - len(begin) - len(end)) // len(piece)) + end


SHAPES: dict[str, bytes] = {
    "lists": _filled(HEAD + b"[", b"[],", b"0]}"),
    "objects": _filled(HEAD + b"[", b"{},", b"0]}"),
    "numbers": _filled(HEAD + b"[", b"1,", b"0]}"),
    "texts": _filled(HEAD + b"[", b'"",', b"0]}"),
    "deep": _filled(HEAD, b"[", b""),
    "deep objects": _filled(HEAD, b'{"a":', b""),
    "one text": _filled(HEAD + b'"', b"a", b'"}'),
    "words": _filled(HEAD + b'"', b"lorem ipsum, ", b'"}'),
    "keys": _filled(HEAD[:-10] + b"{", b'"key":0,', b'"key":1}}'),
    "a long number": _filled(HEAD, b"9", b"}"),
    "a long fraction": _filled(HEAD + b"0.", b"9", b"}"),
    "escapes": _filled(HEAD + b'"', b"\\u00e9", b'"}'),
    "surrogates": _filled(HEAD + b'"', b"\\ud800", b'"}'),
    "backslashes": _filled(HEAD + b'"', b"\\\\", b'"}'),
    "quotes": _filled(HEAD, b'"', b""),
    "no UTF-8": _filled(HEAD + b'"', b"\xff", b'"}'),
    "spaces": _filled(HEAD, b" ", b'"a"}'),
    "tool calls": _filled(CALLS, b"[],", b'0]"}}]}]}'),
}


CHATS = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens")
TEXTS = ("/v1/completions", "/v1/responses", "/tokenize", "/detokenize")


async def _send(client: aiohttp.ClientSession, body: bytes, place: int) -> int:
    paths = CHATS if b'"messages"' in body[:100] else TEXTS
    path = paths[place % len(paths)]
    try:
        async with client.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
            await answer.read()
            return answer.status
    except (aiohttp.ClientConnectionError, ConnectionError):
        return 0


async def main(url: str, names: list[str]) -> list[int]:
    """The statuses of these shapes, all sent at once."""
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        return list(await asyncio.gather(*(_send(client, SHAPES[name], place) for place, name in enumerate(names))))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2:]))))
