"""Joining a Ray cluster, or starting one that nobody else can reach."""

import contextlib
import importlib
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from sdfeel.core.errors import InputError, SdfeelError

# Whoever can talk to a Ray cluster can run code on it, so one that we start talks to itself only.
SAFE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Despite its name, this binds every socket to the loopback address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


class RaySession:
    """This process's connection to Ray, shared by its engines; the last one out ends it."""

    def __init__(self) -> None:
        self._users = 0
        self._ours = False  # a connection made by the user is left alone
        self._lock = threading.Lock()

    def join(self, address: str | None, cpus: int | None = None) -> Any:
        """The ray module, connected: to `address`, to $RAY_ADDRESS, or to a Ray of its own."""
        with self._lock:
            ray = load(address)
            if not ray.is_initialized():
                where = target(address)
                with _same_signals():
                    _start(ray, cpus) if where == "local" else _connect(ray, where)
                self._ours = True
            self._users += 1
            return ray

    def leave(self, ray: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._ours:
                self._ours = False
                with _same_signals():
                    ray.shutdown()


SESSION = RaySession()  # Ray has one connection per process


def target(address: str | None) -> str:
    """Where to connect to; "local" means a Ray of our own."""
    return address or os.environ.get("RAY_ADDRESS") or "local"


def load(address: str | None = None) -> Any:
    """The ray module, set up for `address`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if target(address) == "local":
        if "ray" not in sys.modules:  # it reads its settings when it is imported
            for name, value in SAFE.items():
                os.environ.setdefault(name, value)
        if (
            "RAY_AUTH_TOKEN_PATH" not in os.environ
        ):  # or Ray would write a token into the home directory
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(
            "engine 'ray' needs Ray, which is not installed: pip install sdfeel[ray]"
        ) from None


def _start(ray: Any, cpus: int | None) -> None:
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, **QUIET)


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, **QUIET)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise SdfeelError(
            f"cannot connect to Ray at {address}: {type(error).__name__}: {first}; is it running, "
            f"and does this machine have its token (RAY_AUTH_TOKEN)?"
        ) from error


@contextlib.contextmanager
def _same_signals() -> Iterator[None]:
    """Ray takes over SIGTERM; restore it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
