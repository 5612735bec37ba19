"""A TLS client with its own certificate."""

import http.client
import os
import ssl
import tempfile


def client_context(authority: str, certificate: str, key: str) -> ssl.SSLContext:
    """Trusts ``authority`` and presents ``certificate``; all three are PEM."""
    context = ssl.create_default_context(cadata=authority)
    # ``ssl`` reads a client certificate only from a file.
    descriptor, name = tempfile.mkstemp()
    try:
        os.write(descriptor, f"{certificate}\n{key}".encode())
        context.load_cert_chain(name)
    finally:
        os.close(descriptor)
        os.unlink(name)
    return context


def get(connection: http.client.HTTPSConnection, path: str) -> tuple[int, bytes]:
    """Status and body of one GET. Raises OSError, and closes the connection, when no whole response arrives."""
    return ask(connection, "GET", path)


def ask(
    connection: http.client.HTTPSConnection, method: str, path: str, body: str | None = None, kind: str = "application/json"
) -> tuple[int, bytes]:
    """Status and body of the response to one request; ``body`` is JSON of this ``kind``. Raises OSError as ``get`` does."""
    try:
        connection.request(method, path, body, {"Content-Type": kind} if body else {})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        connection.close()
        raise OSError(repr(error)) from error
    except OSError:
        connection.close()
        raise
