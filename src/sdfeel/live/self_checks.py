"""What a node checks once a second: its disk, its clock, its certificate and its own files."""

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import STATE, write_atomic
from sdfeel.live.audit import AuditLog
from sdfeel.live.health import Health, Tell, cannot_write, write_status
from sdfeel.live.store import Store
from sdfeel.live.trust.allow_list import AllowList
from sdfeel.live.trust.identity import Wallet

if TYPE_CHECKING:
    from sdfeel.live.process import NodeSetting

PULSE = 1.0  # seconds between two checks
LONGEST = 30.0  # most seconds between two tries of a disk that works briefly and fails again
PATIENCE = 10.0  # seconds for the previous process of this node to end
JUMP = 2.0  # seconds by which a clock may be corrected without a line in the log
DAY = 86400.0
EXPIRES_SOON = 30 * DAY


@asynccontextmanager
async def alone(directory: Path, patience: float = PATIENCE) -> AsyncIterator[None]:
    """Lock a node's directory; the system unlocks it when the process ends, however it ends."""
    place = os.open(directory, os.O_RDONLY)
    try:
        end = time.monotonic() + patience
        while not _locked(place):
            if time.monotonic() > end:
                raise RunError(
                    f"another process runs this node from {directory}: stop one of the two"
                )
            await asyncio.sleep(0.1)
        yield
    finally:
        os.close(place)


def _locked(place: int) -> bool:
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # some file systems know no locks
    return True


class Rescued(Exception):
    """Somebody had removed the state; it was written again from the files still open."""


async def until_writable(directory: Path, pause: float = PULSE) -> None:
    """Wait, at least for `pause`, until files can be written here and in the state's directory."""
    while True:
        await asyncio.sleep(pause)
        with suppress(OSError):
            for place in (directory, directory / STATE):
                if place == directory or place.is_dir():
                    trial = place / ".trial"
                    write_atomic(trial, bytes(1 << 16))
                    trial.unlink()
            return


async def until_removed(store: Store) -> None:
    """Check, for ever, that the state is still there; rescue it if it is not."""
    while True:
        await asyncio.sleep(PULSE)
        rescue(store)


def rescue(store: Store) -> None:
    """Raise `Rescued` if somebody has removed the state under a running node.

    The system keeps open files, so nothing is lost as long as the process lives.
    """
    if store.in_place():
        return
    if store.exists():
        raise RunError(
            f"the state in {store.directory} was replaced while this node ran: start the node "
            f"again, and it continues from what is there now"
        )
    try:
        store.backup(store.directory)
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"the state in {store.directory} was removed while this node ran, and could not be "
            f"written again ({error}): restore a backup with `sdfeel deploy restore`, or see "
            f"`sdfeel deploy reseed`"
        ) from None
    raise Rescued(
        f"the state in {store.directory} was removed while this node ran: it was written again "
        f"from what was still open, and nothing is lost"
    )


@dataclass
class Pulse:
    """Checks a node once a second: its disk, its clock, its certificate, its launcher."""

    setting: "NodeSetting"
    health: Health
    audit: AuditLog
    job: "asyncio.Future[None]"
    tell: Tell
    _offset: float | None = None  # of the wall clock from the steady one
    _warned: float = float("-inf")

    def __post_init__(self) -> None:
        self._wallet, allow = Wallet(self.setting.identity), self.setting.allow
        self._allow = AllowList(allow) if allow.is_file() else None  # a client may have none

    async def beat(self) -> None:
        while True:
            self._clock()
            self._certificate()
            self.audit.flush()
            self._disk()
            if self.setting.orphaned():
                self.job.cancel()
            await asyncio.sleep(PULSE)

    def _disk(self) -> None:
        try:
            write_status(self.setting.directory, {**self.health.status(), "ended": False})
            self.health.trouble = "" if self._allow is None else self._allow.gone
        except OSError as error:
            before = self.health.trouble
            why = error.strerror or str(error)
            self.health.trouble = cannot_write(self.setting.directory, why)
            if self.health.trouble != before and not self.health.paused:
                self.tell(self.health.trouble)

    def _clock(self) -> None:
        offset = time.time() - time.monotonic()
        jump = 0.0 if self._offset is None else offset - self._offset
        if abs(jump) > JUMP:
            self.tell(
                f"the clock jumped by {jump:+.0f} s, or the machine slept: rounds are timed by "
                f"another clock, but this one decides whether certificates are valid"
            )
        self._offset = offset

    def _certificate(self) -> None:
        expires = self._wallet.current().expires
        self.health.expires = expires.timestamp()
        left = expires.timestamp() - time.time()
        if left < EXPIRES_SOON and time.monotonic() - self._warned > DAY:
            self._warned = time.monotonic()
            how = f"expires in {left / DAY:.0f} days" if left > 0 else "has expired"
            self.tell(
                f"the certificate of this node {how} ({expires:%Y-%m-%d %H:%M} UTC): renew it with "
                f"`sdfeel deploy renew`"
            )
