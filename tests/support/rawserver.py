"""A server below HTTP's manners: it sends a stream piece by piece and may break it off."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"request-id: req_raw\r\nx-request-id: req_raw\r\n\r\n"
)


class RawServer:
    """Answers one request with the pieces given, each in a TCP segment of its own.

    `ending` is what comes after them: `"end"`: the response ends as it should; `"reset"`: the connection is
    reset in the middle of a chunk; `"open"`: nothing more comes, until the client has gone (`client_left` is
    set then).
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread: threading.Thread | None = None
        self.client_left = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def answer(self, pieces: Iterable[bytes], *, ending: str = "end") -> None:
        """Answer the next request."""
        self._thread = threading.Thread(target=self._serve, args=(list(pieces), ending))
        self._thread.start()

    def close(self) -> None:
        """Wait for the answer to be over."""
        if self._thread is not None:
            self._thread.join(5)
        self._listener.close()

    def _serve(self, pieces: list[bytes], ending: str) -> None:
        self._listener.settimeout(5)
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(5)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _read_request(connection)
            connection.sendall(_HEAD)
            try:
                for piece in pieces:
                    connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                self._finish(connection, ending)
            except (BrokenPipeError, ConnectionResetError):
                self.client_left.set()

    def _finish(self, connection: socket.socket, ending: str) -> None:
        if ending == "end":
            connection.sendall(b"0\r\n\r\n")
        elif ending == "reset":
            connection.sendall(b"ff\r\nevent: half")
            _drain(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            if not connection.recv(1):
                self.client_left.set()


def _drain(connection: socket.socket) -> None:
    """Give the client time to read what was sent: a reset throws away what still lies in its buffer."""
    connection.settimeout(0.05)
    try:
        connection.recv(1)
    except TimeoutError:
        return


def _read_request(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)
