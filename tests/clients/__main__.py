"""``python -m tests.clients``: clients of the field on a real server, and the table of what works."""

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from tests.clients import run
from tests.harness.live_server import open_server


def main() -> int:
    """Run the named clients, or all; status 1 where one gets something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CLIENT", help=f"one of {', '.join(run.CLIENTS)}; all without any")
    parser.add_argument("--url", help="a server that runs, instead of one that is started on tiny-26b-a4b with MTP")
    parser.add_argument("--write", action="store_true", help="write the table to docs/clients.md; needs all clients")
    words = parser.parse_args()
    if unknown := sorted(set(words.names) - set(run.CLIENTS)):
        parser.error(f"no client {', '.join(unknown)}; there are {', '.join(run.CLIENTS)}")
    if words.write and words.names:
        parser.error("--write writes the whole table; leave the clients' names out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="clients-"))
        url = words.url or stack.enter_context(open_server(folder)).url
        told = run.measured(words.names or run.CLIENTS, url)
    if words.write:
        run.write(told)
    return int(any(one["verdict"] == "wrong" for one in told))


if __name__ == "__main__":
    sys.exit(main())
