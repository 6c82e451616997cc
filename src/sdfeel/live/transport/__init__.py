"""Calls between nodes: gRPC streams under mutual TLS, and nothing else.

One method serves every kind of message. A message is a JSON envelope, then its body in chunks of
1 MiB; so is the answer. A body is sent only after the receiver has seen the envelope and said go:
a refusal costs no bandwidth, and a caller never writes into a call that is being ended (grpc.aio
loses the status of such calls, grpc/grpc#36066). A body of up to 256 KiB comes together with its
envelope instead: a second message each way would double the processor time of a conversation.

gRPC does not survive a fork: a process that is to use it must not be forked from one that has.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines on stderr say less than our errors
# Its preparations for forks start its threads again in every child, and can wait for ever there.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from sdfeel.live.transport.errors import NotTrusted, Refused, Unreachable
from sdfeel.live.transport.limits import CHUNK, Limits
from sdfeel.live.transport.peer import Peer, Reply
from sdfeel.live.transport.server import Authorise, Caller, Handler, Server

__all__ = [
    "CHUNK",
    "Authorise",
    "Caller",
    "Handler",
    "Limits",
    "NotTrusted",
    "Peer",
    "Refused",
    "Reply",
    "Server",
    "Unreachable",
]
