"""The paths of the models' HTTP API, one list for the gateway and the router. Pure.

To add a path that takes a body, add it to ``POSTS``, its handler to ``Gateway.app`` of the runner, and the path to
``docs/clients.md``; if it is not below ``/v1/``, also to ``docs/security.md``. Both programs then require a key on this path,
count its requests and name it in errors, and the router passes it on.

To add a path that is only read, add a handler to ``Gateway.app`` of the runner and one to ``Server.app`` of the router, which
answers it by itself, and the path to ``FOR_CLIENTS`` and ``docs/clients.md``. Below ``/v1/`` the gateway requires a key for it;
the router's handler has to check the key itself.
"""

from typing import Final

POSTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
)
"""Paths that take a body."""
LIGHT: Final = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
"""Those of them that need no turn of the model, so that the router does not let them wait for one."""
FOR_CLIENTS: Final = "/v1/models, " + ", ".join(POSTS[:-1]) + " or " + POSTS[-1]
"""All paths, as an error lists them."""


def of_api(path: str) -> bool:
    """Whether a path is for clients, with a key if there is one; the others are for probes, Prometheus and the live page."""
    return path.startswith("/v1/") or path in POSTS
