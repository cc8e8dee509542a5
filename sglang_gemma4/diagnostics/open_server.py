"""Detects a server that anyone who can reach its port can administer."""

from ipaddress import ip_address

ROUTES = "weights, memory, profiles and every request of every client"


def is_loopback(host: str | None) -> bool:
    """Whether ``host`` can be reached from this machine only."""
    if host is None or host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def reason_against(host: str | None, port: int | None, has_key: bool, has_admin_key: bool) -> str | None:
    """Why the server is open, and the flags that close it; None if it is not open.

    With --admin-api-key alone only administrative routes need that key. With --api-key alone every route needs it.
    """
    if has_key or has_admin_key or is_loopback(host):
        return None
    return (
        f"whoever reaches {host}:{port} controls {ROUTES}: no key is set; add --admin-api-key KEY (administrative routes) "
        "or --api-key KEY (all routes), or --host 127.0.0.1"
    )
