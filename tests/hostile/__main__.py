"""``python -m tests.hostile``: the suite on a server of its own, or on one that runs; one request alone with ``--only``."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.harness.live_server import FLAGS, MODEL, Server, open_server
from tests.hostile import report, watched
from tests.hostile.exchange import send
from tests.hostile.plan import Plan
from tests.hostile.runner import Run

SEED = 56
STOCK_FLAGS = ("--enable-metrics", "--sleep-on-idle", "--reasoning-parser", "gemma4", "--tool-call-parser", "gemma4")
"""Stock chooses no parsers, and has no MTP without its overlapped loop, which needs a GPU."""


def main() -> int:
    """Run the suite; status 1 where it shows what it must not."""
    words = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    folder, stock = Path(tempfile.mkdtemp(prefix="hostile-")), os.environ.get("SGLANG_GEMMA4") == "0"
    if words.url:
        return _alone(words, folder)
    with contextlib.ExitStack() as stack:
        openings: list[contextlib.ExitStack] = []

        def start() -> Server:
            for opening in openings:
                opening.close()
            openings[:] = [stack.enter_context(contextlib.ExitStack())]
            place = folder / f"life{len(list(folder.iterdir()))}"
            place.mkdir()
            return openings[0].enter_context(open_server(place, words.model, STOCK_FLAGS if stock else FLAGS, watched.environment(place)))

        server = start()
        plan = Plan(_openapi(server.url, folder), words.seed, words.requests)
        until = time.monotonic() + 60 * words.minutes
        run, name = Run(plan, words.limit, start, until), words.name or ("stock" if stock else "package")
        if words.out:
            threading.Thread(target=_keep, args=(run, words, name), daemon=True).start()
        result = run.go(server, _numbers(words.only))
    print(report.summary(result, name, words.seed, words.requests))
    if words.out:
        report.write(result, words.out, name, words.seed, words.requests)
    return 1 if report.problems(result) else 0


def _keep(run: Run, words: argparse.Namespace, name: str) -> None:
    """Write what is known so far every minute."""
    while True:
        time.sleep(60)
        with contextlib.suppress(RuntimeError):  # a list grew meanwhile
            report.write(run.result, words.out, name, words.seed, words.requests)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--model", default=MODEL, help="the tiny model to serve")
    parser.add_argument("--url", help="ask a server that runs, with --only")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--requests", type=int, default=2000, help="how many; a request's number says all, whatever their number")
    parser.add_argument("--only", help="numbers of requests to send, joined by commas; A-B for a range")
    parser.add_argument("--limit", type=float, default=120, help="seconds within which a request is answered")
    parser.add_argument("--minutes", type=float, default=600, help="nothing is sent after so long")
    parser.add_argument("--out", type=Path, help="folder for the summary and the lines")
    parser.add_argument("--name", help="name of the server in the table")
    return parser


def _numbers(words: str | None) -> list[int] | None:
    if not words:
        return None
    parts = [part.partition("-") for part in words.split(",")]
    return [number for first, _, last in parts for number in range(int(first), int(last or first) + 1)]


def _openapi(url: str, folder: Path) -> Path:
    file = folder / "openapi.json"
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=60) as answer:
        file.write_bytes(answer.read())
    return file


def _alone(words: argparse.Namespace, folder: Path) -> int:
    """Send requests to a server that runs, one after the other, and show the answers."""
    host, _, port = words.url.removeprefix("http://").partition(":")
    plan, numbers = Plan(_openapi(words.url, folder), words.seed, words.requests), _numbers(words.only) or []
    plan.generate(numbers)
    for number in numbers:
        request = plan.request(number)
        outcome = send(request, (host, int(port)), words.limit)
        print(f"{request.shown(3000)}\n  {outcome.statuses} {outcome.trouble} {outcome.seconds:.2f} s {outcome.text[:800]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
