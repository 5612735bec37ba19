"""The proxy that the environment names for the API server.

Looked up once for each client. aiohttp's ``trust_env`` looks it up for each request in a thread, and reads ``~/.netrc`` in
another one. That takes as long as many requests, and an entry for all hosts in ``~/.netrc`` makes requests with a token fail.
"""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject


def proxy_for(url: str) -> str | None:
    """The proxy for this URL by ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``, or by the settings of macOS."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    found = getproxies().get(parts.scheme)
    # Proxies that are reached over TLS are not supported.
    return found if found and urlsplit(found).scheme not in ("https", "wss") else None


def transport(configuration: Configuration) -> RESTClientObject:
    """The official client's transport, with the proxy of the kubeconfig or else of the environment."""
    configuration.client_session_kwargs = {"trust_env": False}
    made = RESTClientObject(configuration)
    made.proxy = made.proxy or proxy_for(str(configuration.host))
    return made
