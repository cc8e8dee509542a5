"""How a client's script tells what works: a class for each endpoint, a method for each feature, a JSON line for each result."""

import asyncio
import importlib.metadata
import inspect
import json
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from tests.clients.asked import Endpoint

FEATURES = ("chat", "streamed", "tools", "structured", "thinking", "errors", "usage")
LONGEST = 300  # characters of a message that are printed


class Row:
    """One client on one endpoint. A method named after a feature returns where the feature is right, and raises otherwise.

    Attributes:
        package: the client's name on the package index; its version is printed.
        endpoint: the path that the client asks.
        refusals: exceptions of the client for status 400; one that a feature lets through is a refusal.
    """

    package = ""
    endpoint = ""
    refusals: tuple[type[Exception], ...] = ()

    def __init__(self, server: Endpoint) -> None:
        self.server = server


def main(rows: Sequence[type[Row]]) -> None:
    """Try each feature of each row on the server whose URL is the first argument; features may follow. Print a JSON line for each."""
    server = Endpoint(sys.argv[1])
    chosen = sys.argv[2:] or FEATURES
    for row in rows:
        told = {"client": row.package, "version": importlib.metadata.version(row.package), "endpoint": row.endpoint}
        for feature in FEATURES:
            if feature in chosen:
                verdict, said = result_of(row, feature, server)
                print(json.dumps({**told, "feature": feature, "verdict": verdict, "said": said}), flush=True)


def result_of(row: type[Row], feature: str, server: Endpoint) -> tuple[str, str]:
    """The verdict ("ok", "refused", "wrong" or "-": the client has no such feature) and what was refused or wrong."""
    method = getattr(row, feature, None)
    if method is None:
        return "-", ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)  # pydantic's: a value is not of the type that the client declares
        warnings.filterwarnings("ignore", ".*ReadOnly. qualifier")  # of a client's own types, whatever the server says
        try:
            returned: Any = method(row(server))
            if inspect.isawaitable(returned):
                asyncio.run(_awaited(returned))
        except row.refusals as error:
            return "refused", _short(str(error))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            cause = f"; {error.__cause__}" if error.__cause__ else ""
            return "wrong", _short(f"{type(error).__name__}: {error}{cause} ({where.filename.rpartition('/')[2]}:{where.lineno})")
    told = [str(one.message) for one in warned if issubclass(one.category, UserWarning)]
    return ("wrong", _short(f"warns: {told[0]}")) if told else ("ok", "")


def ended(command: Sequence[str], seconds: float = 600) -> None:
    """Run a client's own program to its end.

    Raises:
        AssertionError: its status is not 0; the message has its last words.
        subprocess.TimeoutExpired: it has not ended within ``seconds`` and was killed.
    """
    with tempfile.TemporaryFile("w+") as said:  # a pipe would stay open in what the program started
        status = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=said, check=False, timeout=seconds).returncode
        said.seek(0)
        if status:
            raise AssertionError(f"status {status}: {said.read()[-250:]}")


async def _awaited(returned: Any) -> Any:
    return await returned


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
