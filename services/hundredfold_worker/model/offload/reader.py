"""Reads a file in large pieces: out of the system's memory what is there, past it what is not.

What a step reads is read again in each step, in the same order. Once the system has not enough memory for
all of it, keeping a part helps nobody: the part read last is the one needed last. So what is not in memory is
read from the disk right into its buffer, which also takes the processor a fraction of the time.
"""

from __future__ import annotations

import errno
import os

from hundredfold_worker.model.offload.pages import Presence

_PIECE = 32 << 20


def open_direct(file: int) -> int | None:
    """A descriptor of the same file for reads past the system's memory; ``None`` where there are none."""
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


class Reader:
    """Reads whole pages of one file, which has its length.

    Args:
        file: A descriptor, which stays the caller's.
        nbytes: The file's length.

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, file: int, nbytes: int) -> None:
        self._file = file
        self._presence = Presence(file, nbytes)
        self._direct = open_direct(file)

    def read(self, offset: int, into: memoryview) -> None:
        """Fill a buffer that begins with a page. Raises ``OSError``: the disk fails, or the file ends."""
        for begin in range(0, len(into), _PIECE):
            self._piece(offset + begin, into[begin : begin + _PIECE])

    def _piece(self, offset: int, into: memoryview) -> None:
        if self._direct is not None and not self._presence.all_of(offset, len(into)):
            try:
                _fill(self._direct, offset, into)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system with larger blocks than pages
                    raise
                self._close()
        _fill(self._file, offset, into)

    def _close(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def __del__(self) -> None:
        if hasattr(self, "_direct"):
            self._close()


def _fill(file: int, offset: int, into: memoryview) -> None:
    done = 0
    while done < len(into):
        got = os.preadv(file, [into[done:]], offset + done)
        if not got:
            raise OSError(errno.EIO, f"the file of weights ends at {offset + done}")
        done += got
