"""Shows a page to browsers of this machine, at an address that only its teacher knows."""

from __future__ import annotations

import secrets
import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ASKS_WITHIN_S = 10
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}


class _Loopback(ThreadingHTTPServer):
    allow_reuse_address = True
    server_bind = socketserver.TCPServer.server_bind  # HTTPServer's asks for this host's name


@contextmanager
def served(make: Callable[[], str], port: int) -> Iterator[tuple[str, ThreadingHTTPServer]]:
    """Return the address of a page, and its server, not running yet.

    It listens on loopback. Other accounts of this machine reach that too, so the address has a
    secret part; and a browser asks only for a name of loopback, whatever other pages have it load.

    Args:
        make: called for each request, returns the page.
        port: where it listens; 0 for one that is free.

    Raises:
        OSError: if the port is taken.
    """
    secret = f"/{secrets.token_urlsafe(24)}/"

    class Handler(BaseHTTPRequestHandler):
        timeout = _ASKS_WITHIN_S

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0]
            known = secrets.compare_digest(self.path.encode(), secret.encode())
            if not known or host not in ("127.0.0.1", "localhost"):
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                page = make().encode()
            except OSError as error:  # the folder is not there for a moment
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=f"{error}")
                return
            self.send_response(HTTPStatus.OK)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: a line for each look would hide the address."""

    with _Loopback(("127.0.0.1", port), Handler) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}{secret}", server
