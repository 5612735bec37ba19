"""Kopf in a pod whose user has no name."""

import asyncio
import getpass
import os
from typing import Any, cast

import kopf
import pytest
from kopf._core.engines import peering
from thunderfleet_lib.kube import Kube
from thunderfleet_operator.watch import kopf_watch


async def test_kopf_does_not_ask_for_the_name_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet gives each pod a user of its own, which no password database lists."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1446002000")

    async def operator(**_: Any) -> None:
        assert peering.detect_own_id(manual=False)

    monkeypatch.delenv("POD_ID", raising=False)
    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.setattr(kopf, "operator", operator)
    monkeypatch.setattr(kopf_watch, "registry", lambda kube, event, news: None)
    try:
        await kopf_watch.run(cast(Kube, None), cast(Any, None), cast(Any, None), asyncio.Event(), asyncio.Event())
    finally:
        os.environ.pop("POD_ID", None)
