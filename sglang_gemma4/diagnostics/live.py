"""Reads the answers of a live server, for ``doctor --url`` and ``dashboard --url``."""

import urllib.error
import urllib.request


def address(url: str) -> str:
    """``url`` with a scheme and without a slash at its end."""
    return (url if "://" in url else f"http://{url}").rstrip("/")


def read(url: str, path: str, api_key: str | None, refused: str) -> str:
    """The text that a server answers at ``path``.

    Args:
        refused: what the operator should do if the server answers with an error other than a missing key.

    Raises:
        ValueError: nothing answers there, or the answer is an error.
    """
    base = address(url)
    request = urllib.request.Request(base + path, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        hint = "give its key with --api-key" if error.code in (401, 403) else refused
        raise ValueError(f"{base}{path} answers {error.code} {error.reason}; {hint}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"no SGLang server answers at {base} ({error}); check host and port, or wait until it is up") from error
    return text
