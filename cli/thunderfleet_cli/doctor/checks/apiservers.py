"""The balancer of this Mac, through which its programs reach an API server. Pure."""

from thunderfleet_controlplane.balancer.look import Look

from thunderfleet_cli.doctor.checks.check import Check, State

RESTART = "sudo launchctl kickstart -k system/io.thunderfleet.balancer"


def api_servers(found: Look) -> Check:
    """Whether the balancer listens, and which API servers in its list accept connections."""
    name = "api-servers"
    if not found.listens:
        finding = "the balancer of this Mac does not listen on 127.0.0.1:6444, so nothing on this Mac reaches an API server"
        return Check(name, State.FAILURE, finding, RESTART)
    if found.unreadable:
        finding = f"the list of API servers cannot be read ({found.unreadable}): run this with sudo"
        return Check(name, State.UNKNOWN, finding)
    if not found.known:
        finding = (
            "the balancer of this Mac has no API server in its list: run `sudo thunderfleet join` with a new line, which `sudo "
            "thunderfleet init` prints on a Mac with a control plane"
        )
        return Check(name, State.FAILURE, finding)
    if not found.reached:
        finding = (
            f"this Mac reaches none of the API servers in its list ({', '.join(found.lost)}): check that a Mac with "
            "a control plane is on, and the network to it; if its address has changed, run `sudo thunderfleet init` there and "
            "`sudo thunderfleet join` with the new line here"
        )
        return Check(name, State.FAILURE, finding)
    if found.lost:
        finding = (
            f"this Mac reaches {', '.join(found.reached)} and does not reach {', '.join(found.lost)}: switch that Mac on; if "
            "it does not come back, run `sudo thunderfleet reset --member NODE` on another Mac with a control plane"
        )
        return Check(name, State.WARNING, finding)
    finding = f"the balancer of this Mac reaches every API server in its list: {', '.join(found.reached)}"
    return Check(name, State.OK, finding)
