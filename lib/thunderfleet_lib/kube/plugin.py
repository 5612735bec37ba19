"""Credential plugins of a kubeconfig, with a time limit.

The client library waits for a plugin without a limit, and does not end it when the caller is cancelled. It only logs the errors
of a plugin, and continues without credentials.
"""

import asyncio
import contextlib
import json
import os
import sys
from typing import Any, Final

from kubernetes.aio.config import kube_config
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.exec_provider import ExecProvider

SECONDS: Final = 60.0
"""A login in a browser takes a while."""


class LimitedPlugin(ExecProvider):  # type: ignore[misc]
    """A plugin that is killed when it takes too long, or when its caller is cancelled."""

    async def run(self, previous_response: Any = None) -> Any:
        """The ``status`` of what the plugin prints. Raises ConfigException."""
        spec = {"interactive": sys.stdout.isatty(), **({"response": previous_response} if previous_response else {})}
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {**self.env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        name = os.path.basename(self.args[0])
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self.args, env=environment, stdout=pipe, stderr=pipe)
        try:
            async with asyncio.timeout(SECONDS):
                said, complained = await process.communicate()
        except TimeoutError:
            text = f"the credential plugin {name} did not answer within {SECONDS:g} s: log in with it first"
            raise ConfigException(text) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0:
            words = complained.decode("utf-8", "replace").strip()[-300:]
            raise ConfigException(f"the credential plugin {name} ended with code {process.returncode}: {words}")
        return self._status(name, said)

    def _status(self, name: str, said: bytes) -> Any:
        try:
            credential = json.loads(said)
        except ValueError:
            credential = None
        if not isinstance(credential, dict) or "status" not in credential:
            raise ConfigException(f"the credential plugin {name} printed no ExecCredential")
        if credential.get("apiVersion") != self.api_version:
            raise ConfigException(
                f"the credential plugin {name} has the version {credential.get('apiVersion')}, not {self.api_version}"
            )
        return credential["status"]


def use() -> None:
    """Makes the client library run plugins with a time limit."""
    kube_config.ExecProvider = LimitedPlugin
