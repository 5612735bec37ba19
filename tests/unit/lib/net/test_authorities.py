"""Programs do not read the certificates of all authorities that the machine trusts when they start."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from thunderfleet_lib.net import tls

# Prints what a program knows of authorities when it has refused its command line, which it does after its imports: the number
# that aiohttp's contexts know, the number that a later context knows, and the variable.
REFUSED = """
import os, ssl
from {module}.cli import main
assert main({words}) in (1, 2)
from aiohttp import connector
for context in (connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED, ssl.create_default_context()):
    print(context.cert_store_stats()["x509_ca"])
print(os.environ.get("SSL_CERT_FILE"))
"""


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The file with the only authority that this machine trusts."""
    path = tmp_path / "authorities.pem"
    key, name, now = tls.new_key(), tls.subject("the only one"), datetime.now(UTC)
    validity = tls.Validity(now - timedelta(hours=1), now + timedelta(hours=1))
    made = tls.build_certificate(name, key.public_key(), tls.Issuer(name, key), validity, ca=True)
    path.write_bytes(tls.certificate_pem(made))
    return path


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("thunderfleet_operator", ["run", "--ports", "20000-20999", "--ring-ports", "20999-29999"]),
        ("thunderfleet_agent", ["run", "--node-name", ""]),
        ("thunderfleet_runner", ["serve", "--pod", ""]),
        ("thunderfleet_kubelet", ["run", "--root", "no-such-folder"]),
    ],
)
def test_only_contexts_that_a_program_makes_know_them(module: str, words: list[str], authority: Path) -> None:
    environment = {**os.environ, "SSL_CERT_FILE": str(authority)}
    code = REFUSED.format(module=module, words=words)
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=environment, cwd=authority.parent
    )
    assert done.stdout.splitlines() == ["0", "0", "1", str(authority)]
