"""Ends downloads of media from http(s) addresses within their timeout, whatever the other side sends and however slowly.

SGLang gives each socket read the whole timeout, and checks the clock between chunks of 64 KiB. A server that sends a byte every two
seconds holds one of the four loading threads for hours.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from sglang_gemma4.serving.media import served

GRACE = 0.25
"""Seconds after the deadline at which sockets are closed, so that SGLang's own, more precise error can come first."""


class _Download:
    """A thread's download, with a duplicate handle of each connection that it opened."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.late = threading.Event()
        self._handles: list[socket.socket] = []
        self._timer = threading.Timer(seconds + GRACE, self._cut)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down too when the time is over, by a duplicate: TLS takes over the socket itself."""
        self._handles.append(connection.dup())
        if self.late.is_set():
            self._cut()

    def _cut(self) -> None:
        self.late.set()
        for handle in list(self._handles):
            with contextlib.suppress(OSError):  # the other side has closed it
                handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        for handle in self._handles:
            handle.close()


class _Here(threading.local):
    download: _Download | None = None


_here = _Here()


def connect(host: str, port: int, seconds: float) -> socket.socket:
    """A TCP connection to the first of a host's addresses that accepts one, within ``seconds`` in total.

    Raises:
        OSError: no address accepts, or the host has none.
    """
    end, failed = time.monotonic() + seconds, OSError(f"no address of {host} answers within {seconds:.1f} s")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        left = end - time.monotonic()
        if left <= 0:
            break
        found = socket.socket(family, kind, protocol)
        found.settimeout(left)
        try:
            found.connect(address)
        except OSError as error:
            failed = error
            found.close()
        else:
            return found
    raise failed


def _connected(connection: HTTPConnection) -> socket.socket:
    """The socket for ``_new_conn``: connected within the download's time, and watched."""
    download = _here.download
    assert download is not None, "a session is of one download"
    found = connect(connection._dns_host, connection.port, max(0.0, download.end - time.monotonic()))
    download.watch(found)
    return found


class _Plain(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self)


class _Encrypted(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


class _Adapter(HTTPAdapter):
    """Makes requests connect to a server, or to a proxy from the environment, over watched connections."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _EncryptedPool}

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _EncryptedPool}
        return manager


def watched_session(original: Callable[[], requests.Session]) -> requests.Session:
    """Around ``get_mm_http_session``: inside a download, a new session with watched connections, which end with the download."""
    if _here.download is None:
        return original()
    session = requests.Session()
    session.mount("http://", _Adapter())
    session.mount("https://", _Adapter())
    return session


def download(original: Callable[..., bytes], url: str, timeout: float) -> bytes:
    """Around ``download_remote_media``: the content, within ``timeout`` seconds.

    Raises:
        ValueError: the download took longer than ``timeout`` seconds. SGLang's other errors are passed on.
    """
    if not served.is_gemma4():
        return original(url, timeout=timeout)
    current = _here.download = _Download(timeout)
    try:
        content = original(url, timeout=timeout)
    except requests.exceptions.RequestException as error:
        if not current.late.is_set():
            raise
        raise ValueError(_too_slow(url, timeout)) from error
    finally:
        _here.download = None
        current.close()
    if current.late.is_set():
        raise ValueError(_too_slow(url, timeout))
    return content


def _too_slow(url: str, timeout: float) -> str:
    return f"{url[:60]} did not send the file within {timeout:.0f} s; send it in the request, or have the operator raise REQUEST_TIMEOUT"
