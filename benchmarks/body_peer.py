"""The other process of the benchmark ``bodies``: the client that sends them, and the engine that they end at.

``python -m benchmarks.body_peer`` prints the engine's port; for each line ``PORT TARGET KIND BYTES`` on its input
it sends one body and prints the milliseconds from the first byte to the end of the answer.
"""

import itertools
import json
import socket
import sys
import threading
import time
from typing import Final

_PIECES: Final = {
    "one string": (b'"', b"QUJDREVGR0hJSktM", b"", b'"'),
    "code": (b'"', b'for each in found:\\n    told(\\"it\\", each)\\n', b"", b'"'),
    "messages": (b"[", b'{"role":"user","content":"Tell me of the sea"}', b",", b"]"),
    "small numbers": (b"[", b"7", b",", b"]"),
}
KINDS: Final = tuple(_PIECES)
"""What bodies consist of: an image in base64, source code with its escapes, a long talk, a list of digits."""
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_READ_BYTES: Final = 256 * 1024


def body_of(kind: str, size_bytes: int) -> bytes:
    """A body of exactly this size."""
    opening, piece, between, closing = _PIECES[kind]
    start = b'{"model":"tiny","messages":' + opening
    end = closing + b',"max_tokens":1}'
    count = (size_bytes - len(start) - len(end) + len(between)) // len(piece + between)
    middle = between.join(itertools.repeat(piece, count))
    body = start + middle + end
    return body[:-1] + b" " * (size_bytes - len(body)) + body[-1:]


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        for line in sys.stdin:
            port, target, kind, size_bytes = json.loads(line)
            print(_ask(port, target, body_of(kind, size_bytes)), flush=True)


def _ask(port: int, target: str, body: bytes) -> float:
    head = f"POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began_s = time.perf_counter()
        connection.sendall(head.encode())
        connection.sendall(body)
        answer = b""
        while data := connection.recv(_READ_BYTES):
            answer += data
        took_s = time.perf_counter() - began_s
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"not answered: {answer[:300]!r}")
    return took_s * 1_000


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_read, args=(connection,), daemon=True).start()


def _read(connection: socket.socket) -> None:
    """An engine that takes a body as fast as it comes and makes nothing of it."""
    room = bytearray(_READ_BYTES)
    with connection:
        while True:
            head = b""
            while b"\r\n\r\n" not in head:
                data = connection.recv(_READ_BYTES)
                if not data:
                    return
                head += data
            head, _, body = head.partition(b"\r\n\r\n")
            left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(body)
            while left > 0:
                left -= connection.recv_into(room)
            connection.sendall(_ANSWER)


if __name__ == "__main__":
    main()
