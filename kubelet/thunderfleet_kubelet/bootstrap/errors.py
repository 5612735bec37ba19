"""Why joining fails."""


class JoinError(Exception):
    """Joining is not possible; the message gives the reason and the fix."""


class UsageError(JoinError):
    """An argument of the command line is invalid."""


def join_again(node: str = "NAME", options: str = "") -> str:
    """What to run when a node has no usable identity any more."""
    return (
        f"run `thunderfleet-kubelet join{options}` again with a new token (`kubeadm token create --print-join-command` prints "
        f"one and the hash of the CA; on a local cluster: `thunderfleet local token --node {node}`; if `thunderfleet init` "
        "made this Mac a node, run it again instead; if `thunderfleet join` did, run `sudo thunderfleet reset`, delete the "
        "Node and join again)"
    )
