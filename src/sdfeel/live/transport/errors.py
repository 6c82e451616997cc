"""What can go wrong between two nodes: one class for each way to react.

SdfeelError
+-- Unreachable   an outage: try again later
+-- NotTrusted    one side does not accept the other's identity: a person must act
+-- Unable        this node cannot do its part now: the caller should try again later
+-- Refused       the peer understood and said no: do not repeat the same request
    +-- Rejected  what was sent does not pass the checks
"""

from sdfeel.core.errors import SdfeelError


class Unreachable(SdfeelError):
    """The peer gave no answer in time."""


class NotTrusted(SdfeelError):
    """Authentication failed; trying again cannot help."""


class Unable(SdfeelError):
    """This node cannot do what was asked: its disk is full, say, or its allow-list is gone."""


class Refused(SdfeelError):
    """The peer said no. Raised by its handler, and again at the caller with the same reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Rejected(Refused):
    """What was sent breaks a rule: on size, hash, schema, finite values, norm or signature."""
