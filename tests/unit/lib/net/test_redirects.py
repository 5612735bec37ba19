"""Clients that follow no redirects, and that all clients of the programs are such."""

import ast
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_lib.net import redirects

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_error_and_its_target_is_not_asked(status: int) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/target"}) if request.path == "/" else web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession(trace_configs=[redirects.refused()]) as session:
            assert (await session.get(f"{url}/other")).status == 200
            asks: tuple[Callable[[str], Awaitable[Any]], ...] = (session.get, session.post, session.ws_connect)
            for ask in asks:
                with pytest.raises(redirects.Redirected, match=f"127.0.0.1 answered with a redirect .HTTP {status}."):
                    await ask(f"{url}/")
    finally:
        await runner.cleanup()
    assert asked == ["/other", "/", "/", "/"]


def _sessions(module: Path) -> list[ast.Call]:
    tree = ast.parse(module.read_text())
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "ClientSession"]


def test_no_client_of_a_program_follows_redirects() -> None:
    """Either its session refuses them, or each of its requests does."""
    modules = [path for path in ROOT.glob("*/thunderfleet_*/**/*.py") if "ClientSession(" in path.read_text()]
    assert len(modules) >= 10
    for module in modules:
        text = module.read_text()
        refuses = all("trace_configs" in {word.arg for word in call.keywords} for call in _sessions(module))
        assert (refuses and "redirects.refused()" in text) or "allow_redirects=False" in text, module
