"""A worker process of the local runner, which runs this file as a program.

It reads requests from its standard input and writes replies to its standard output; whatever user code prints goes to
standard error. It ends when the process that started it does, whatever it is doing.
"""

import contextlib
import json
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

KEPT = 64  #: networks, samples and images that a worker process keeps

Message = tuple[dict[str, Any], bytes]


def send(stream: IO[bytes], header: dict[str, Any], content: bytes = b"") -> None:
    """Send a message: plain values, and bytes."""
    text = json.dumps(header).encode()
    stream.write(struct.pack("!QQ", len(text), len(content)))
    stream.write(text)
    stream.write(content)
    stream.flush()


def receive(stream: IO[bytes]) -> Message:
    """Receive a message. Raises ``EOFError`` if the other end is gone."""
    text, content = struct.unpack("!QQ", _exactly(stream, 16))
    header: dict[str, Any] = json.loads(_exactly(stream, text))
    return header, _exactly(stream, content)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError
    return found


def main() -> None:
    """Do tasks until there are no more."""
    parent = os.getppid()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    begin, _ = receive(requests)
    sys.path[:] = begin["path"]
    with contextlib.suppress(BrokenPipeError):  # the driver is gone
        _work(requests, replies, Path(begin["scratch"]), begin["ram"], begin["disk"])


def _work(requests: IO[bytes], replies: IO[bytes], scratch: Path, ram: int, disk: int) -> None:
    import warnings

    import torch

    from suture.core.activations.cache import Activations
    from suture.core.activations.disk_cache import ActivationFolder
    from suture.runs.runners.base import Task
    from suture.runs.runners.transport import Payload, Unpacker

    torch.set_num_threads(1)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # those of libraries; ours are errors

    def fetch(key: str) -> bytes:
        send(replies, {"need": key})
        return receive(requests)[1]

    unpacker = Unpacker(fetch, KEPT)
    activations = Activations(ram, ActivationFolder(scratch, disk))
    send(replies, {})
    while True:
        try:
            header, content = receive(requests)
        except EOFError:
            return
        try:
            task = unpacker.unpack(Payload(content, tuple(header["parts"])))
        except Exception as error:  # a module that is not here, weights that are others
            send(replies, {"refused": f"{type(error).__name__}: {error}"})
            continue
        assert isinstance(task, Task)
        outcome = task.run(activations)
        send(replies, {"record": outcome.record}, outcome.tensors)


def _leave_with(parent: int) -> None:
    """End this process when its parent has gone, even in the middle of a task: nobody would hear of it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
