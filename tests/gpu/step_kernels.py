"""What a server's steps are made of while prompts are admitted: its kernels, by CUDA graph.

    python -m tests.gpu.step_kernels FOLDER MODEL [--load N] [-- FLAGS]

Starts SGLang's server with FLAGS, sends ``bench``'s ``mix`` (120 requests of mixed lengths, 80 at once) and profiles the card, without the
host, for some scheduler iterations in the middle of the third pass; then so many equal short requests, for plain decode steps. For each
CUDA graph that was replayed at least three times with as many rows FOLDER/kernels.json has its time and its kernels'. A kernel counts with
what it adds to the busy time: under dependent launch it starts before the one before it has ended. Prints tokens/s of each pass too.
Without a card it runs on the CPU reference engine, which has no graphs: a rehearsal.
"""

import argparse
import concurrent.futures
import contextlib
import gzip
import json
import os
import random
import statistics
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import workloads
from sglang_gemma4.benchmark.server import Server
from tests.gpu.measure import has_card

STEPS = 24
"""Scheduler iterations of a profile."""
LEAST, SHOWN = 3, 12
"""Replays of a graph that is told of, and its kernels that are named."""
ROWS = ("tail_rows_kernel", "_tail_kernel")
"""Kernels that have a program for each row, in every layer."""


def ask(url: str, path: str, **body: Any) -> Any:
    """The answer of a POST."""
    asked = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=600) as answer:
        text = answer.read().decode()
    return json.loads(text) if path == "/generate" else text


def load(url: str, requests: Sequence[tuple[int, int]], most: int, most_id: int) -> float:
    """Output tokens a second of requests of so many tokens in and out, ``most`` of them at once; each prompt is random."""
    rng, began = random.Random(), time.monotonic()

    def one(tokens_in: int, tokens_out: int) -> int:
        sampling = {"temperature": 0, "max_new_tokens": tokens_out, "ignore_eos": True}
        answer = ask(url, "/generate", input_ids=rng.choices(range(100, most_id), k=tokens_in), sampling_params=sampling)
        return int(answer["meta_info"]["completion_tokens"])

    with concurrent.futures.ThreadPoolExecutor(most) as clients:
        tokens = sum(clients.map(lambda lengths: one(*lengths), requests))
    return tokens / (time.monotonic() - began)


def profiled(url: str, folder: Path, requests: Sequence[tuple[int, int]], most: int, most_id: int, after: float) -> list[Path]:
    """Traces of a pass of these requests, profiled ``after`` so many seconds."""
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        passing = beside.submit(load, url, requests, most, most_id)
        time.sleep(after)
        ask(url, "/start_profile", output_dir=str(folder), num_steps=STEPS, activities=["GPU" if has_card() else "CPU"])
        passing.result()
    for _ in range(60):
        if found := sorted(folder.glob("*.trace.json.gz")):
            time.sleep(2.0)  # it is being written
            return found
        with contextlib.suppress(OSError):
            ask(url, "/stop_profile")  # the pass had fewer iterations
        time.sleep(1.0)
    raise RuntimeError(f"no profile was written to {folder}")


def graphs_of(trace: Path) -> list[dict[str, Any]]:
    """For each kind of CUDA graph in a trace: ``rows``, ``kernels``, ``replays``, ``ms`` (median) and ``parts``: name, ms, launches."""
    events = [event for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"] if event.get("ph") == "X"]
    ran = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    ran.sort(key=lambda event: event["ts"] + event["dur"])
    until, of_launch = 0.0, defaultdict(list)
    for event in ran:
        end = event["ts"] + event["dur"]
        of_launch[event["args"].get("correlation")].append((event, max(0.0, end - max(event["ts"], until))))
        until = max(until, end)
    kinds = defaultdict(list)
    for event in events:
        launched = of_launch.get(event.get("args", {}).get("correlation"), []) if "GraphLaunch" in event["name"] else []
        rows = Counter(one["args"]["grid"][0] for one, _ in launched if one["name"].startswith(ROWS))
        if launched and rows:
            kinds[rows.most_common(1)[0][0], len(launched)].append(launched)
    found = []
    for (rows, kernels), replays in sorted(kinds.items()):
        if len(replays) >= LEAST:
            parts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
            for event, added in (pair for launched in replays for pair in launched):
                name = f"{event['name'][:60]} {tuple(event['args'].get('grid', ())[1:])}"
                parts[name][0] += added / 1000 / len(replays)
                parts[name][1] += 1 / len(replays)
            told = sorted(((name, round(ms, 3), round(count, 1)) for name, (ms, count) in parts.items()), key=lambda part: -part[1])
            times = [sum(added for _, added in launched) / 1000 for launched in replays]
            found.append(
                {"rows": rows, "kernels": kernels, "replays": len(replays), "ms": round(statistics.median(times), 3), "parts": told}
            )
    return found


def main(words: Sequence[str]) -> int:
    """Exit status 1 where there is a card and no graph was seen."""
    cut = words.index("--") if "--" in words else len(words)
    form = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form.add_argument("folder", type=Path)
    form.add_argument("model")
    form.add_argument("--load", type=int, default=57, metavar="N", help="requests of the plain decode steps (default: %(default)s)")
    asked = form.parse_args(words[:cut])
    asked.folder.mkdir(parents=True, exist_ok=True)
    (mix,) = workloads.named(["mix"], [])
    mix = mix if has_card() else workloads.miniature(mix)
    lengths = [(row["prompt"], row["output"]) for row in workloads.rows(mix, 1, range(100, 200))]
    most_id, short = (200_000, (100, 300)) if has_card() else (500, (10, 40))
    server = Server(asked.model, words[cut + 1 :], dict(os.environ), asked.folder / "server.log", cpu=not has_card())
    result: dict[str, Any] = {"words": list(words), "passes": [], "graphs": {}}
    try:
        result["ready"] = round(server.wait_until_ready(900, print), 1)
        for number in range(3):
            result["passes"].append(round(load(server.url, lengths, mix.concurrency or len(lengths), most_id)))
            print(f"pass {number + 1}: {result['passes'][-1]} tokens/s", flush=True)
        for name, requests, after in (("mix", lengths, 1.3), (f"{asked.load} running", [short] * asked.load, 1.0)):
            traces = profiled(server.url, asked.folder / name.replace(" ", "-"), requests, 80, most_id, after if has_card() else 0.1)
            result["graphs"][name] = [graph for trace in traces for graph in graphs_of(trace)]
    finally:
        server.stop()
    (asked.folder / "kernels.json").write_text(json.dumps(result, indent=1) + "\n")
    for name, graphs in result["graphs"].items():
        for graph in graphs:
            print(f"\n{name}: {graph['rows']} rows, {graph['ms']:.2f} ms, median of {graph['replays']}, {graph['kernels']} kernels")
            for part, milliseconds, launches in graph["parts"][:SHOWN]:
                print(f"{milliseconds:8.2f} ms {launches:6.0f} launches  {part}")
    return int(has_card() and not any(result["graphs"].values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
