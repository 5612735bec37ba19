"""ThunderboltLinks: state, rates, and the groups that use them."""

from thunderfleet_dashboards.panels import Page, Query, Row, Shown
from thunderfleet_dashboards.queries import CLUSTER, NODE, latest, ratio

LINK = "thunderfleet_thunderboltlink"
MEASURED = latest(f"{LINK}_measured_bytes_per_second", CLUSTER, "name", "from", "to", "transport")
NEGOTIATED = latest(f"{LINK}_negotiated_bytes_per_second", CLUSTER, "name")
BYTES = f"{LINK}_{{}}_bytes_total"


def _live(way: str) -> str:
    return f"max by (cluster, name, node) (rate({BYTES.format(way)}{{{NODE}}}[$__rate_interval]))"


PAGE = Page(
    "thunderfleet-cables",
    "Thunderfleet / Cables",
    "Which cable is down, slow or flapping, and what it carries.",
    (
        Row(
            "State",
            (
                Shown(
                    "Conditions",
                    "Each condition of each cable with its reason: 1 True, 0 False, -1 Unknown.",
                    (Query(latest(f"{LINK}_condition", CLUSTER, "name", "type", "reason"), "{{name}} {{type}} {{reason}}"),),
                    kind="table",
                    width=12,
                ),
                Shown(
                    "Flapping",
                    "1 for cables that connect and disconnect so often that not every change is reported.",
                    (Query(latest(f"{LINK}_flapping", CLUSTER, "name"), "{{name}}"),),
                    bad=1,
                    width=6,
                ),
                Shown(
                    "Changes",
                    "Number of times that an end of a cable lost or gained its carrier in the last hour.",
                    (
                        Query(
                            f"max by (cluster, name, node) (increase({LINK}_changes_total{{{NODE}}}[1h]))",
                            "{{name}} at {{node}}",
                        ),
                    ),
                    warn=2,
                    bad=6,
                    width=6,
                ),
            ),
        ),
        Row(
            "Rates",
            (
                Shown(
                    "Negotiated",
                    "Negotiated speed, the lower of both ends.",
                    (Query(latest(f"{LINK}_negotiated_bytes_per_second", CLUSTER, "name"), "{{name}}"),),
                    unit="Bps",
                ),
                Shown(
                    "Measured",
                    "Throughput that the most recent benchmark measured, by direction.",
                    (
                        Query(
                            latest(f"{LINK}_measured_bytes_per_second", CLUSTER, "name", "from", "to", "transport"),
                            "{{from}} → {{to}} {{transport}}",
                        ),
                    ),
                    unit="Bps",
                ),
                Shown(
                    "Measured of negotiated",
                    "Measured throughput as a share of the negotiated speed. A cable far below the "
                    "others is dirty, damaged or too long.",
                    (
                        Query(
                            ratio(f"min by (cluster, name) ({MEASURED})", NEGOTIATED),
                            "{{name}}",
                        ),
                    ),
                    unit="percentunit",
                    warn=0.25,
                    bad=0.5,
                    low=True,
                ),
                Shown(
                    "Received",
                    "Bytes that arrive over the cable's network interface. RDMA is not counted by macOS.",
                    (Query(_live("received"), "{{name}} at {{node}}"),),
                    unit="Bps",
                ),
                Shown(
                    "Sent",
                    "Bytes that leave over the cable's network interface. RDMA is not counted by macOS.",
                    (Query(_live("sent"), "{{name}} at {{node}}"),),
                    unit="Bps",
                ),
                Shown("Groups", "Groups that use the cable.", (Query(latest(f"{LINK}_groups", CLUSTER, "name"), "{{name}}"),)),
            ),
        ),
    ),
    ("node",),
)
