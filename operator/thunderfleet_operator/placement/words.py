"""The words of a request and of its answer: how a model is split, what ranks talk over."""

from enum import StrEnum


class WantedSplit(StrEnum):
    AUTO = "Auto"
    TENSOR = "Tensor"
    PIPELINE = "Pipeline"


class WantedTransport(StrEnum):
    AUTO = "Auto"
    JACCL = "JACCL"
    JACCL_RING = "JACCLRing"
    RING = "Ring"


class Split(StrEnum):
    NONE = "None"
    TENSOR = "Tensor"
    PIPELINE = "Pipeline"


class Transport(StrEnum):
    NONE = "None"
    RING = "Ring"
    JACCL = "JACCL"
    JACCL_RING = "JACCLRing"
