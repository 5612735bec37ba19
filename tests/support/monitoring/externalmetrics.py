"""The API of external metrics, as an adapter serves it: how many requests of a ModelDeployment run or wait.

``python -m tests.support.monitoring.externalmetrics FOLDER ADDRESS PORT`` reads the metrics of the runners whose URLs are in
``FOLDER/targets``, one a line, and serves with the certificate ``FOLDER/tls.crt`` and the key ``FOLDER/tls.key``. It answers
only if it could read them all.
"""

import json
import ssl
import sys
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from prometheus_client.parser import text_string_to_metric_families

GROUP_VERSION = "external.metrics.k8s.io/v1beta1"
METRIC = "thunderfleet_requests"
SUMMED = ("thunderfleet_runner_requests_running", "thunderfleet_runner_queue_depth")
READ_SECONDS = 5


def requests_of(folder: Path, namespace: str, deployment: str) -> int:
    """The sum over its groups. Raises OSError if a runner does not answer, and LookupError if none has the metrics."""
    found: list[float] = []
    for url in (folder / "targets").read_text().split():
        with urllib.request.urlopen(url, timeout=READ_SECONDS) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                of_it = (sample.labels.get("namespace"), sample.labels.get("deployment")) == (namespace, deployment)
                found += [sample.value] if sample.name in SUMMED and of_it else []
    if not found:
        raise LookupError(f"no runner has {' or '.join(SUMMED)} of {namespace}/{deployment}")
    return int(sum(found))


def handler(folder: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            where = urlsplit(self.path)
            parts = where.path.removeprefix(f"/apis/{GROUP_VERSION}").strip("/").split("/")
            if where.path.rstrip("/") == f"/apis/{GROUP_VERSION}":
                one = {
                    "name": METRIC,
                    "singularName": "",
                    "namespaced": True,
                    "kind": "ExternalMetricValueList",
                    "verbs": ["get"],
                }
                return self.send(200, {"kind": "APIResourceList", "groupVersion": GROUP_VERSION, "resources": [one]})
            selector = parse_qs(where.query).get("labelSelector", [""])[0]
            if parts[0] != "namespaces" or parts[2:] != [METRIC] or not selector.startswith("deployment="):
                return self.send(404, {"kind": "Status", "status": "Failure", "code": 404})
            try:
                value = requests_of(folder, parts[1], selector.removeprefix("deployment="))
            except (OSError, LookupError) as error:
                return self.send(503, {"kind": "Status", "status": "Failure", "code": 503, "message": str(error)})
            item = {"metricName": METRIC, "metricLabels": {}, "value": str(value), "timestamp": f"{datetime.now(UTC):%FT%TZ}"}
            return self.send(200, {"kind": "ExternalMetricValueList", "metadata": {}, "items": [item]})

        def send(self, status: int, body: dict[str, object]) -> None:
            content = json.dumps({"apiVersion": GROUP_VERSION, **body}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            if "namespaces" in self.path:
                print(status, content.decode(), flush=True)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def main() -> None:
    folder, address, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server = ThreadingHTTPServer((address, port), handler(folder))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
