"""Why joining fails."""


class JoinError(Exception):
    """Joining is not possible; the message gives the reason and the fix."""


class UsageError(JoinError):
    """An argument of the command line is invalid."""


def join_again(node: str = "NAME", options: str = "") -> str:
    """What to run when a node has no usable identity any more."""
    return (
        "join again. On a Mac with a control plane: run `sudo thunderfleet init`. On another Mac of `thunderfleet join`: run "
        f"`sudo thunderfleet reset`, delete the Node (`kubectl delete node {node}`), and join with a new line of `init`. On "
        f"other machines: run `thunderfleet-kubelet join{options}` with a new token, which `kubeadm token create "
        "--print-join-command` prints with the hash of the CA, and on a local cluster `thunderfleet local token --node "
        f"{node}`"
    )
