"""The API's vocabulary of splits and transports."""

from thunderfleet_crds.vocabulary import Split, Transport

WantedSplit = Split
WantedTransport = Transport

__all__ = ["Split", "Transport", "WantedSplit", "WantedTransport"]
