"""Servers that do not do what a server should, for clients that must notice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def silent_server() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def half_server(*, closes: bool) -> Iterator[str]:
    """Promises 1000 bytes to every request and sends 500; then it closes, or keeps the line open."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\netag: e\r\n"
        b"last-modified: Wed, 21 Oct 2020 07:28:00 GMT\r\n\r\n"
    )

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            connection.recv(65536)
            connection.sendall(head + b"x" * 500)
            if closes:
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for connection in connections:
            connection.close()
