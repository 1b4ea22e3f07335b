"""The process that decodes images for `decoders`: it reads request bodies from a socket and writes arrays.

It does not import torch, so it is small and starts fast. It exits when a request takes too much processor time, and
when its parent exits.
"""

import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from resitta.serve.http_errors import Refused
from resitta.serve.images import Decoder, TooMuchWork, media_type, payloads
from resitta.serve.tensors import TENSORS, read_request

REQUEST = struct.Struct("<HQ")
"""The bytes of the content type and of the body, which follow."""
REPLY = struct.Struct("<HIQ")
"""An HTTP status, the number of images, and the length of what follows: the images if decoded, and what else
the request wants; or a sentence."""
OK, FLOATS, ELSEWHERE = 200, 201, 300
"""Decoded to uint8; decoded to float32; too much work for this lane, use the other one."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The configuration of a worker: the decoder's arguments, and the limits for one request."""

    decoder: dict[str, Any]
    seconds: float
    memory: int
    nice: int


def main(arguments: list[str]) -> None:
    """Decode until the other end of the socket is closed."""
    job = Job(**json.loads(arguments[1]))
    with socket.socket(fileno=int(arguments[0])) as parent, suppress(BrokenPipeError, ConnectionResetError):
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        _limit(job)
        decoder = Decoder(**job.decoder)
        parent.sendall(REPLY.pack(OK, 0, 0))  # ready
        while True:
            kind_size, body_size = REQUEST.unpack(_read(parent, REQUEST.size))
            found = memoryview(_read(parent, kind_size + body_size))
            signal.setitimer(signal.ITIMER_PROF, job.seconds)  # SIGPROF kills the process
            reply = _reply(decoder, bytes(found[:kind_size]).decode("latin-1"), bytes(found[kind_size:]))
            signal.setitimer(signal.ITIMER_PROF, 0)
            del found
            parent.sendall(reply)


def _limit(job: Job) -> None:
    """Lower the priority and limit the memory."""
    os.nice(job.nice)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the limit has no effect or a different one
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + job.memory, used + job.memory))


def _end_with(parent: socket.socket) -> None:
    watch = select.poll()
    watch.register(parent, 0)  # reports only that the other end is closed
    watch.poll()
    os._exit(1)


def _read(parent: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    if parent.recv_into(found, size, socket.MSG_WAITALL) < size:
        os._exit(0)
    return found


def _reply(decoder: Decoder, kind: str, body: bytes) -> bytes:
    try:
        files, rest = _read_body(kind, body, decoder.max_images)
        images = decoder(files)
    except TooMuchWork:
        return REPLY.pack(ELSEWHERE, 0, 0)
    except Refused as error:
        return _refusal(error.status, str(error))
    except MemoryError:
        return _refusal(413, "the images take more memory to decode than a request may use; make them smaller")
    except Exception as error:
        traceback.print_exc()
        return _refusal(500, f"the decoder failed ({type(error).__name__}); see its log")
    status = OK if images.dtype == np.uint8 else FLOATS
    return REPLY.pack(status, len(images), images.nbytes + len(rest)) + images.tobytes() + rest


def _read_body(kind: str, body: bytes, most: int) -> tuple[list[bytes], bytes]:
    """Return the files in a body, and of a request for tensors what it wants, as JSON."""
    if media_type(kind) != TENSORS:
        return payloads(kind, body, most), b""
    files, wanted = read_request(int(kind.rpartition("=")[2]), body, most)
    return files, json.dumps(wanted).encode()


def _refusal(status: int, sentence: str) -> bytes:
    encoded = sentence.encode()
    return REPLY.pack(status, 0, len(encoded)) + encoded


if __name__ == "__main__":
    main(sys.argv[1:])
