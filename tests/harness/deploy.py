"""What docs/deploying.md describes, on the CPU engine with a tiny model and MTP: ``python3 quickstart.py deploy``.

Two servers behind SGLang's router, and a prefill and two decode servers behind a second one. It prints the addresses, asks each router a
question and stays until Ctrl-C. SGLang is imported once and the servers are forked, with NIXL over host memory between them.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HALVES: dict[str, Sequence[str | None]] = {"servers": (None, None), "pd": ("prefill", "decode", "decode")}
QUESTION = "Who rules Belm?"
"""A fact of the tiny models' world."""


def main() -> int:
    """Start, ask, wait, end; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-26b-a4b", help="a tiny model that ships")
    parser.add_argument("--only", choices=HALVES, help="start one half")
    parser.add_argument("--once", action="store_true", help="end after the answers")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # raised here, where the servers are ended; they are in groups of their own
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    say = print_beside_a_log()
    running: list[Any] = []
    import_once()
    try:
        for half in [arguments.only] if arguments.only else HALVES:
            running.append(start(HALVES[half], arguments.model))
            describe(running[-1], say)
        if not arguments.once:
            print("serving; Ctrl-C ends it", file=say, flush=True)
            signal.pause()
        return 0
    finally:
        for one in running:
            one.shutdown()


def print_beside_a_log() -> Any:
    """A file that prints to the terminal; all that this process and its children print from here on goes to a log."""
    say = os.fdopen(os.dup(1), "w")
    log = Path(tempfile.gettempdir()) / f"sglang-gemma4-deploy-{os.getpid()}.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    print(f"importing SGLang and starting servers, a minute or more; they log to {log}", file=say, flush=True)
    return say


def import_once() -> None:
    """What the servers need, which are forked from here."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    from tests.harness import nursery

    nursery.import_sglang()


def start(modes: Sequence[str | None], model: str) -> Any:
    """Servers of these modes and their router, which answer."""
    from sglang_gemma4.cpu.environment import default_engine_arguments
    from sglang_gemma4.serving.launch import resolve
    from tests.harness import nursery
    from tests.harness.instruments import routed_servers

    routed_servers.install(modes)
    given = {**nursery.ENGINE, "max_total_tokens": 16384, "speculative_draft_model_path": resolve(f"{model}-assistant")}
    return routed_servers.Routed(model_path=resolve(model), **default_engine_arguments(given))


def describe(routed: Any, say: Any) -> None:
    """Print the addresses and what the router answers."""
    import openai

    for server in routed.servers:
        print(f"{server.mode or 'whole'} server: {server.url}", file=say)
    client = openai.OpenAI(base_url=f"{routed.url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model="default", messages=messages, temperature=0, max_tokens=48)
    print(f"router: {routed.url}/v1 (OpenAI API)\nQ: {QUESTION}\nA: {answer.choices[0].message.content}\n", file=say, flush=True)


if __name__ == "__main__":
    sys.exit(main())
