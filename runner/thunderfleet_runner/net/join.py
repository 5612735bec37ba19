"""Joining a group: how a member connects to rank 0."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME, Plan
from thunderfleet_lib.net import redirects

from thunderfleet_runner.net import peers
from thunderfleet_runner.net.connection import Connection
from thunderfleet_runner.net.control import HANDSHAKE_SECONDS, JOIN_PATH, MESSAGE_LIMIT


class JoinRefused(Exception):
    """The leader refuses this supervisor; the text is its reason."""


async def join_group(
    plan: Plan,
    tls: ssl.SSLContext,
    hello: peers.Hello,
    serve: Callable[[Connection], Awaitable[str]],
) -> str:
    """Connects to rank 0 and runs ``serve`` until the connection ends; returns how it ended.

    Tries rank 0's own address, then the one at which, according to the plan, this rank reaches it. Raises JoinRefused with the
    leader's reason, ConnectionError when rank 0 does not answer or is not of the group.
    """
    planned = plan.ranks[hello.rank].coordinator if hello.rank < plan.world_size else None
    addresses = dict.fromkeys(filter(None, (plan.ranks[0].address, planned)))
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=HANDSHAKE_SECONDS)
    connector = aiohttp.TCPConnector(ssl=tls, limit=1, force_close=True)
    traces = [redirects.refused()]
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, trace_configs=traces) as session:
        problems = []
        for address in addresses:
            where = f"rank 0 at {address}:{plan.ranks[0].control_port}"
            try:
                socket, answer = await _claim(session, f"https://{address}:{plan.ranks[0].control_port}{JOIN_PATH}", hello)
            except TimeoutError:
                problems.append(f"{where} did not answer within {HANDSHAKE_SECONDS:g} s")
                continue
            except (aiohttp.ClientError, OSError, ValueError, TypeError, aiohttp.WSMessageTypeError) as error:
                problems.append(f"cannot join {where}: {' '.join(str(error).split())[:300]}")
                continue
            try:
                if isinstance(answer, peers.Refusal):
                    raise JoinRefused(f"{where} refused this rank: {answer.explanation}")
                return await serve(Connection(socket, where))
            finally:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    await socket.close()
        raise ConnectionError("; ".join(problems))


async def _claim(
    session: aiohttp.ClientSession, url: str, hello: peers.Hello
) -> tuple[aiohttp.ClientWebSocketResponse, peers.Answer]:
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        socket = await session.ws_connect(
            url,
            server_hostname=GROUP_TLS_NAME,
            max_msg_size=MESSAGE_LIMIT,
            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
        )
        await socket.send_str(hello.model_dump_json())
        return socket, peers.ANSWER.validate_json(await socket.receive_str())
