"""The steps of ``thunderfleet run``: apply the ModelDeployment, wait until it serves, chat."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from thunderfleet_crds import uris
from thunderfleet_lib.kube import ApiError, Json, Kube
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_view.follow import is_asleep, is_ready, obstacle, waiting_for

from thunderfleet_cli.connection import Connection, connect
from thunderfleet_cli.run.chat import Conversation, NotServing
from thunderfleet_cli.run.manifest import manifest, model_of, name_for
from thunderfleet_cli.terminal import printable

MANAGER = "thunderfleet-run"
POLL_SECONDS = 1.0
OBSTACLE_SECONDS = 30.0
"""How long a ModelDeployment may be impossible to place before the command stops: agents and Macs may just be starting."""
STALE_SECONDS = 90.0
"""How long the status may report a group that does not serve. After a loss of power it does until the operator runs again."""
PROMPT_CHARACTERS = 1 << 20
NOT_PLACEABLE = 3
KEY_VARIABLE = "THUNDERFLEET_API_KEY"
NEW = "/new"


class NotPlaceable(LocalClusterError):
    """No set of Macs can currently serve the model."""


@dataclass(frozen=True)
class Service:
    """A ModelDeployment that the command created or found. ``seconds``: the time limit for waiting until it serves."""

    connection: Connection
    name: str
    model: str
    seconds: float
    sha256: str | None = None
    """Hash of the file SHA256SUMS, for a URI."""

    @property
    def path(self) -> str:
        """Name of the ModelDeployment."""
        return f"/apis/thunderfleet.io/v1alpha1/namespaces/{self.connection.namespace}/modeldeployments/{self.name}"

    @property
    def kubectl(self) -> str:
        """The arguments of kubectl that name it."""
        return f"md {self.name} -n {self.connection.namespace}"

    def apply(self) -> None:
        """Creates the ModelDeployment, or finds the one that serves the same model. Raises LocalClusterError."""
        asyncio.run(self._apply())

    async def _apply(self) -> None:
        async with await self.connection.kube() as kube:
            try:
                found = await kube.get_or_none(self.path)
                if found is None:
                    body = manifest(self.connection.namespace, self.name, self.model, self.sha256)
                    await kube.apply(self.path, body, MANAGER, force=False)
                    say(f"created ModelDeployment {self.name} in namespace {self.connection.namespace}")
                    return
            except ApiError as error:
                raise _refused(self, error) from error
        if model_of(found) != self.model:
            raise LocalClusterError(
                f"ModelDeployment {self.name} serves {model_of(found)}; use another --name, or delete it: "
                f"kubectl delete {self.kubectl}",
                usage=True,
            )
        say(f"using ModelDeployment {self.name} in namespace {self.connection.namespace}")

    def until_ready(self) -> str:
        """Waits until the model is served, and shows why it waits. Returns the endpoint. Raises LocalClusterError."""
        return asyncio.run(self._until_ready())

    async def _until_ready(self) -> str:
        async with await self.connection.kube() as kube:
            return await self._follow(kube)

    async def _follow(self, kube: Kube) -> str:
        limit, said = time.monotonic() + self.seconds, ""
        blocked: float | None = None
        while True:
            found = await self._read(kube)
            endpoint = (found.get("status") or {}).get("endpoint")
            if (is_ready(found) or is_asleep(found)) and endpoint:
                return str(endpoint)
            now, waits = time.monotonic(), waiting_for(found)
            if waits != said:
                say(f"  … {waits}")
                said = waits
            text = obstacle(found)
            blocked = None if text is None else blocked or now
            if blocked is not None and now - blocked > OBSTACLE_SECONDS:
                raise NotPlaceable(f"{text}; {self._what_stays}")
            if now > limit:
                raise LocalClusterError(f"not ready after {self.seconds:g} s: {waits}; {self._what_stays}")
            await asyncio.sleep(POLL_SECONDS)

    @property
    def _what_stays(self) -> str:
        return (
            f"the ModelDeployment was not deleted: kubectl describe {self.kubectl} shows its state, kubectl delete "
            f"{self.kubectl} removes it"
        )

    async def _read(self, kube: Kube) -> Json:
        try:
            found = await kube.get_or_none(self.path)
        except ApiError as error:
            if error.transient:
                return {"metadata": {"generation": 0}, "status": {"conditions": [_unreachable(error)]}}
            raise _refused(self, error) from error
        if found is None:
            raise LocalClusterError(f"ModelDeployment {self.name} has been deleted")
        return found


def _unreachable(error: ApiError) -> Json:
    return {"type": "ModelResolved", "status": "Unknown", "message": str(error)}


def _refused(service: Service, error: ApiError) -> LocalClusterError:
    if error.status == 404:
        return LocalClusterError(
            "the cluster does not have the kind ModelDeployment: install the chart (docs/install.md); or the namespace "
            f"{service.connection.namespace} does not exist"
        )
    return LocalClusterError(f"cannot use {service.kubectl}: {error}")


def _check_uri(model: str, sha256: str | None) -> None:
    if "://" not in model and sha256 is None:
        return
    try:
        uris.check_uri(model)
        uris.check_sha256(sha256 or "")
    except ValueError as error:
        raise LocalClusterError(str(error), usage=True) from None


def run(arguments: argparse.Namespace) -> int:
    """``thunderfleet run MODEL``. Raises LocalClusterError."""
    _check_uri(arguments.model, arguments.sha256)
    name = arguments.deployment or name_for(arguments.model)
    if not name:
        raise LocalClusterError(f"no name can be made from {arguments.model!r}; set --name", usage=True)
    prompt = _prompt(arguments.prompt)
    connection = connect(arguments.kubeconfig, arguments.context, arguments.namespace)
    service = Service(connection, name, arguments.model, arguments.timeout, arguments.sha256)
    try:
        service.apply()
        endpoint = service.until_ready()
    except NotPlaceable as error:
        say(f"thunderfleet: {error}")
        return NOT_PLACEABLE
    say(f"{service.model} is served at {endpoint}")
    # No cleanup is needed, and in a chat Ctrl-C has another meaning than SIGTERM or a closed terminal.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # A server names the model of a URI by its folders.
    served = service.model if service.sha256 is None else uris.served_name(service.model)
    conversation = Conversation(served, service.connection.proxy, os.environ.get(KEY_VARIABLE))
    if prompt is not None:
        _answer(service, conversation, endpoint, prompt)
        return 0
    _chat(service, conversation, endpoint)
    say(f"\n{name} keeps serving; `kubectl delete {service.kubectl}` ends it")
    return 0


def say(text: str) -> None:
    """Progress on standard error; answers go to standard output."""
    print(printable(text), file=sys.stderr, flush=True)


def _prompt(given: str | None) -> str | None:
    """The only prompt to answer: ``given``, or standard input unless that is a terminal; None for a chat."""
    if given is None and sys.stdin.isatty():
        return None
    text = sys.stdin.read(PROMPT_CHARACTERS + 1) if given is None else given
    if not text.strip():
        raise LocalClusterError("the prompt is empty; pass --prompt, or write one to standard input", usage=True)
    if len(text) > PROMPT_CHARACTERS:
        raise LocalClusterError(f"the prompt has more than {PROMPT_CHARACTERS} characters", usage=True)
    return text


def _show(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe, as in `thunderfleet run … | head`. That is no fault of the endpoint, and Python must not
        # report an error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1) from None


def _answer(service: Service, conversation: Conversation, endpoint: str, prompt: str) -> str:
    """Shows one answer. Returns the endpoint, which may have moved.

    While the group does not serve, this tries again: for as long as ``--timeout`` allows if the status reports the reason, and
    for STALE_SECONDS if the status reports that the group serves. An answer that breaks off is requested once more.
    """
    waiting, broken, said = _Waiting(service.seconds), False, ""
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        _show(text)

    while True:
        try:
            conversation.ask(endpoint, prompt, show)
        except NotServing as error:
            if broken or waiting.is_over():
                raise
            broken = bool(shown)
            if str(error) != said:
                said = str(error)
                say(f"\n{said}; waiting until it serves again")
            waiting.began()
            endpoint = service.until_ready()
            waiting.ended()
        else:
            _show("\n")
            return endpoint


class _Waiting:
    """How long to wait for a group that does not serve. ``seconds``: the limit in all."""

    def __init__(self, seconds: float) -> None:
        self._limit = time.monotonic() + seconds
        self._stale: float | None = None
        """When a status was first read at once that reports that the group serves, although it does not."""
        self._began = 0.0

    def is_over(self) -> bool:
        """Whether to give up."""
        now = time.monotonic()
        return now >= self._limit or (self._stale is not None and now - self._stale >= STALE_SECONDS)

    def began(self) -> None:
        """The wait for a status that reports that the group serves begins."""
        self._began = time.monotonic()
        if self._stale is None:
            self._stale = self._began

    def ended(self) -> None:
        """It has ended. If it was short, that status may be older than the failure."""
        if time.monotonic() - self._began < POLL_SECONDS:
            time.sleep(POLL_SECONDS)
        else:
            self._stale = None


def _lines() -> Iterator[str]:
    """What the user types, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        # Line editing and history.
        import readline  # noqa: F401
    while True:
        try:
            yield input(">>> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            say("\nCtrl-D ends the chat")


def _chat(service: Service, conversation: Conversation, endpoint: str) -> None:
    say(f"Ctrl-C stops an answer, Ctrl-D ends the chat, {NEW} starts a new one.")
    for line in _lines():
        if line.strip() == NEW:
            conversation.messages = []
        elif line.strip():
            try:
                endpoint = _answer(service, conversation, endpoint, line[:PROMPT_CHARACTERS])
            except KeyboardInterrupt:
                say("")
            except LocalClusterError as error:
                say(f"\n{error}")
