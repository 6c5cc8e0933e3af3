"""Messages between two processes, their arrays in shared memory."""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

FIRST_BYTES = 2**20
"""Size of a block of memory at first."""
ALIGNMENT = 64
"""Bytes: arrays begin at multiples of it."""


class Channel:
    """One end of a connection between two processes that take turns to speak.

    What is sent is pickled, but for its arrays, which lie in a block of memory that both map. The
    block is the sender's, grows as it must and is written anew by each message, therefore one who
    has sent arrays waits for the answer. It has no name: with the last process that maps it, it
    is gone.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._ours = self._theirs = memoryview(b"")

    def send(self, message: Any) -> None:
        """Send anything that can be pickled; raises a ConnectionError if nobody listens."""
        buffers: list[memoryview] = []
        text = dumps(message, lambda x: buffers.append(x.raw()))
        spans, end = [], 0
        for buffer in buffers:
            spans.append((end, end + buffer.nbytes))
            end += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
        block = self._grown(end) if end > len(self._ours) else None
        for (first, stop), buffer in zip(spans, buffers, strict=True):
            self._ours[first:stop] = buffer
        self.connection.send((text, spans, len(self._ours) if block is not None else None))
        if block is not None:
            reduction.send_handle(self.connection, block, None)
            os.close(block)

    def receive(self) -> Any:
        """The next message; its arrays are its own. Raises an EOFError if the other is gone."""
        text, spans, size = self.connection.recv()
        if size is not None:
            block = reduction.recv_handle(self.connection)
            self._theirs = memoryview(mmap.mmap(block, size))
            os.close(block)
        return pickle.loads(text, buffers=[bytearray(self._theirs[a:b]) for a, b in spans])

    def close(self) -> None:
        """Hang up."""
        self.connection.close()

    def _grown(self, num_bytes: int) -> int:
        """Take a new block of at least so many bytes; gives its file, for the other to map."""
        size = max(FIRST_BYTES, 2 * len(self._ours))
        while size < num_bytes:
            size *= 2
        block = _nameless_file()
        os.ftruncate(block, size)
        self._ours = memoryview(mmap.mmap(block, size))
        return block


def dumps(
    message: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    """A message as bytes that `pickle.loads` takes; raises what `pickle.dumps` does.

    What a notebook defines at its top level goes by value, since no other process can import it.
    """
    if hasattr(sys.modules["__main__"], "__file__"):
        return pickle.dumps(message, protocol=5, buffer_callback=buffer_callback)
    import cloudpickle  # nobody else needs it

    pickle.dumps(message, protocol=5, buffer_callback=lambda _: None)  # refuses what it refuses
    return cloudpickle.dumps(message, protocol=5, buffer_callback=buffer_callback)


def _nameless_file() -> int:
    """An empty file that goes with its last user: in memory, or on disk where that cannot be."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("adaptax")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
