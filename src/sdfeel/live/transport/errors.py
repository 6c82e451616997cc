"""What can go wrong between two nodes: one class for each way to react.

SdfeelError
+-- Unreachable   an outage: try again later
+-- NotTrusted    one side does not accept the other's identity: a person must act
+-- Unable        this node cannot do its part for now: the caller tries again later
+-- Refused       the peer understood and said no: do not repeat the same request
    +-- Rejected  tensors that do not pass the checks
"""

from sdfeel.core.errors import SdfeelError


class Unreachable(SdfeelError):
    """The peer gave no answer in time."""


class NotTrusted(SdfeelError):
    """Authentication failed; trying again cannot help."""


class Unable(SdfeelError):
    """A handler raises it where it cannot keep what it is told, for lack of a disk, say."""


class Refused(SdfeelError):
    """The peer answered no. A handler raises it, and the caller receives it with its reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Rejected(Refused):
    """Received tensors break a rule: size, hash, schema, finiteness or norm."""
