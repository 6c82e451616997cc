"""How much one node lets others take: bytes, calls and seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sdfeel.core.errors import InputError

CHUNK = 1 << 20  # bytes of a body per message
INLINE = CHUNK // 4  # bytes of a body that travels in one message with its envelope


@dataclass(frozen=True)
class Limits:
    """The bounds of a node. A kind of message that is not in `bodies` carries no body."""

    bodies: Mapping[str, int] = field(default_factory=dict)  # kind -> most bytes, either direction
    header_bytes: int = 64 << 10
    calls: int = 4096  # at once, of all callers
    calls_per_caller: int = 16  # at once, of one certificate
    uploads_per_caller: int = 2  # bodies on their way at once, of one certificate
    connections: int = 900  # a process often has 1,024 descriptors
    # For one chunk. A link must carry 140 kbit/s, as the slowest mobile ones do; a shared link that
    # gives a node less counts as an outage.
    chunk_seconds: float = 60.0
    call_seconds: float = 600.0  # the longest call, waiting included but no bodies on their way
    handshake_seconds: float = 10.0
    idle_seconds: float = 900.0  # a connection without calls is closed
    connection_seconds: float = 3600.0  # then it is made anew, so certificates are checked again
    keepalive_seconds: float = 5.0  # a silent connection is tested, and must answer, this often

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "bodies" and not value > 0:
                raise InputError(f"limits.{name} must be more than 0, got {value}")
        for kind, most in self.bodies.items():
            if most < 0:
                raise InputError(f"limits.bodies['{kind}'] must be at least 0, got {most}")

    def body_bytes(self, kind: str) -> int:
        """The most bytes that a message of this kind, or the answer to it, may carry."""
        return self.bodies.get(kind, 0)

    def transfer_seconds(self, size: int) -> float:
        """How long a body of so many bytes may be on its way: every chunk as long as it may."""
        return size / CHUNK * self.chunk_seconds
