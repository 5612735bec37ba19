"""What people see of the balancer: the API servers that it knows, and which of them accept connections."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from thunderfleet_controlplane.balancer.look import Look, look
from thunderfleet_controlplane.balancer.servers import ApiServer, to_text


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A port of 127.0.0.1 that accepts connections; that of 127.0.0.9 does not."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_who_answers(tmp_path: Path, port: int) -> None:
    file = tmp_path / "servers.json"
    servers = (ApiServer("127.0.0.1", port), ApiServer("127.0.0.9", port), ApiServer("studio-1.local", port))
    file.write_text(to_text(servers))
    expected = Look(True, (f"127.0.0.1:{port}",), (f"127.0.0.9:{port}",), (f"studio-1.local:{port}",))
    assert await look(file, port) == expected and expected.known == 2
    assert expected.values()["notReachable"] == [f"127.0.0.9:{port}"]


async def test_the_api_server_of_this_mac_is_reached_whatever_its_address_is(tmp_path: Path, port: int) -> None:
    file, own = tmp_path / "servers.json", ApiServer("127.0.0.9", port)
    file.write_text(to_text((own,)))
    assert await look(file, port) == Look(True, (), (f"127.0.0.9:{port}",))
    assert await look(file, port, own) == Look(True, (f"127.0.0.1:{port}",))


async def test_names_count_where_no_address_answers(tmp_path: Path, port: int) -> None:
    file = tmp_path / "servers.json"
    file.write_text(to_text((ApiServer("127.0.0.9", port), ApiServer("localhost", port))))
    assert (await look(file, port)).reached == (f"localhost:{port}",)


async def test_a_list_that_is_not_there_or_damaged(tmp_path: Path, port: int) -> None:
    missing = await look(tmp_path / "none.json", port)
    assert missing.listens and "none.json: No such file" in missing.unreadable
    (tmp_path / "damaged.json").write_text("{")
    assert await look(tmp_path / "damaged.json", port) == Look(True)
