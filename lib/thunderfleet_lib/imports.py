"""Keeps kubernetes's synchronous client out of memory: 7 MB in each program, of which a Mac runs several at all times.

We use ``kubernetes.aio`` only, but its import runs ``kubernetes/__init__``, which imports the synchronous client too, and so
requests, oauthlib and websocket-client. Here the package is known without being run; each of its modules can still be imported.
"""

import importlib.util
import sys


def without_synchronous_client() -> None:
    """From now on in this process, unless ``kubernetes`` is imported already."""
    if "kubernetes" in sys.modules:
        return
    spec = importlib.util.find_spec("kubernetes")
    if spec is not None:
        sys.modules["kubernetes"] = importlib.util.module_from_spec(spec)
