"""A prefill and a decode server behind SGLang's router against one server: the same greedy tokens, and what the transfer costs.

    python -m tests.gpu.pd_servers OUT.json MODEL --prefill-tp 1 --decode-tp 1 [--cards 2] [--same 0.9] [--mtp] [--together] [-- FLAGS]

One server answers first; then the pair does, the prefill server from card 0 on, the decode server behind it or, where there are not enough
cards for both, from card 0 on too (halve --mem-fraction-static then). ``--together``: all start at once; card 0 must hold three where the
pair shares it, so bound their pools by --max-total-tokens. ``--same``: share of the answers that must be alike. FLAGS are of all servers.
OUT.json gets the answers' counts, times of single requests, and the prefill server's transfer metrics; logs lie beside it. Without a card
the servers run on the CPU reference engine, over NIXL agents in host memory.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "crash_repro")]

from tests.gpu.measure import has_card  # noqa: E402
from tests.harness.instruments import pd_router  # noqa: E402 - the repository's root is known now
from tests.harness.ports import free_port  # noqa: E402

UP_WITHIN = 900.0
"""Seconds for a server to answer."""
LENGTHS, PER_LENGTH, NEW_TOKENS = (40, 300, 2000), 4, 48
MTP = ("--speculative-algorithm=NEXTN", "--speculative-num-steps=3", "--speculative-eagle-topk=1", "--speculative-num-draft-tokens=4")


def serve(words: Sequence[str]) -> None:
    """Become SGLang's server with these flags; on the CPU reference engine where there is no card."""
    if has_card():
        os.execv(sys.executable, [sys.executable, "-m", "sglang.launch_server", *words])
    ranks = next((int(word.partition("=")[2]) for word in words if word.startswith("--tp-size=")), 1)
    cores = sorted(os.sched_getaffinity(0))
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
    from tests.harness import nursery

    nursery.import_sglang()  # a server's processes are forked then, and have what follows
    import rank_agents  # type: ignore[import-not-found]
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    from sglang_gemma4.cpu.environment import default_arguments
    from tests.harness.instruments import gloo_ranks, host_cache

    gloo_ranks.install()
    host_cache.torch_copies()
    rank_agents.install("nixl")
    load_plugins()
    run_server(prepare_server_args([*words, *default_arguments(words)]))


def meanwhile(start: contextlib.AbstractContextManager[str], inside: contextlib.ExitStack) -> Callable[[], str]:
    """Enter ``start`` in a thread and leave it with ``inside``; the call waits for its address."""
    thread = concurrent.futures.ThreadPoolExecutor(1)
    inside.callback(thread.shutdown)
    begun = thread.submit(start.__enter__)
    inside.callback(lambda: begun.exception() or start.__exit__(None, None, None))
    return begun.result


@contextlib.contextmanager
def server(log: Path, flags: Sequence[str]) -> Iterator[str]:
    """A server that answers; its address."""
    port = free_port()
    command = [sys.executable, "-m", "tests.gpu.pd_servers", "--serve", *flags, "--host", pd_router.HOST, "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        pd_router.wait(f"http://{pd_router.HOST}:{port}/health", time.monotonic() + UP_WITHIN, process)
        yield f"http://{pd_router.HOST}:{port}"
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{log.read_text(errors='replace')[-4000:]}") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def prompts(longest: int, model: str) -> list[list[int]]:
    """Token ids, some prompts of each length; for a tiny model each ends with a question that it answers for sure.

    In bf16, tensor parallelism rounds sums in another order, and after random tokens near ties part the answers.
    """
    rng = random.Random(5)
    asked = []
    for length in (length for length in LENGTHS if length <= longest for _ in range(PER_LENGTH)):
        question = [2, *question_ids(model, rng)] if "tiny" in model else [2]
        asked.append([*question[:1], *(rng.randrange(300, 1000) for _ in range(length - len(question))), *question[1:]])
    return asked


def question_ids(model: str, rng: random.Random) -> list[int]:
    """A question about the tiny models' world, as their chat template has it, without the first token."""
    from transformers import AutoTokenizer

    from sglang_gemma4.tiny import dialogues

    messages = dialogues.chat(rng, turns=1).messages
    while messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    text = AutoTokenizer.from_pretrained(model).apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(AutoTokenizer.from_pretrained(model)(text, add_special_tokens=False)["input_ids"][1:])


def answers(url: str, asked: Sequence[Sequence[int]], whole: bool) -> dict[str, Any]:
    """Tokens of all prompts at once, then seconds of each alone until its first token: other prompts, which no cache has.

    Args:
        whole: no answer ends before so many tokens. What a trained model would write after its answer's end, it does not know for sure:
            in bf16 two sizes part there, on the CPU too, where 5 of 8 answers were alike with it and 8 of 8 without.
    """
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": whole}
    batch = pd_router.ask_each(url, asked, sampling)
    first: dict[int, list[float]] = {}
    for number, prompt in enumerate([asked[0], *asked]):  # the first one warms up
        begun = time.monotonic()
        pd_router.ask(url, input_ids=[2, 300 + number, *prompt[2:]], sampling_params={**sampling, "max_new_tokens": 1})
        first.setdefault(len(prompt), []).append(time.monotonic() - begun)
    first[len(asked[0])] = first[len(asked[0])][1:]
    return {"tokens": [each["output_ids"] for each in batch], "first": {size: statistics.median(each) for size, each in first.items()}}


def pair(folder: Path, flags: Sequence[str], given: argparse.Namespace, asked: Sequence[Sequence[int]], whole: bool) -> dict[str, Any]:
    """What the two servers answer behind the router, and the prefill server's transfer metrics."""
    prefill, decode = given.prefill_tp, given.decode_tp
    bootstrap = free_port()
    shared = [*flags, "--disaggregation-transfer-backend=nixl", f"--disaggregation-bootstrap-port={bootstrap}", "--enable-metrics"]
    apart = prefill + decode <= given.cards
    sides = {
        "prefill": [*shared, "--disaggregation-mode=prefill", f"--tp-size={prefill}"],
        "decode": [*shared, "--disaggregation-mode=decode", f"--tp-size={decode}", f"--base-gpu-id={prefill if apart else 0}"],
    }
    with contextlib.ExitStack() as inside:
        started = []
        for side, words in sides.items():
            started.append(meanwhile(server(folder / f"{side}.log", words), inside))
            if not apart and not given.together:
                started[-1]()  # where both use a card, the second counts what the first has left
        first, second = (address() for address in started)
        log = inside.enter_context((folder / "router.log").open("wb"))
        port = free_port()
        router = pd_router.start(port, first, bootstrap, second, time.monotonic() + UP_WITHIN, log)
        try:
            found = answers(f"http://{pd_router.HOST}:{port}", asked, whole)
        finally:
            router.kill()
            router.wait()
        with urllib.request.urlopen(f"{first}/metrics", timeout=60) as metrics:
            lines = metrics.read().decode().splitlines()
    told = [line for line in lines if "kv_transfer" in line and ("_sum" in line or "_count" in line) and "#" not in line]
    found["transfer"] = [re.sub(r'model_name="[^"]*",?', "", line) for line in told]  # a path of this machine
    found["plan"] = [line for line in (folder / "prefill.log").read_text(errors="replace").splitlines() if "transfer plan" in line]
    return found


def parser() -> argparse.ArgumentParser:
    """Of the words before ``--``."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("out", type=Path)
    made.add_argument("model")
    made.add_argument("--prefill-tp", type=int, required=True)
    made.add_argument("--decode-tp", type=int, required=True)
    made.add_argument("--cards", type=int, default=2)
    made.add_argument("--same", type=float, default=0.9)
    made.add_argument("--longest", type=int, default=max(LENGTHS))
    made.add_argument("--mtp", action="store_true")
    made.add_argument("--together", action="store_true")
    return made


def main(words: Sequence[str]) -> int:
    """Exit status 1 where fewer answers are alike than asked for, or no plan was logged between unequal sizes."""
    if words[:1] == ["--serve"]:
        serve(words[1:])
        return 0
    cut = words.index("--") if "--" in words else len(words)
    asked = parser().parse_args(words[:cut])
    from sglang_gemma4.serving.launch import resolve

    model = resolve(asked.model)
    flags = ["--model-path", model, *words[cut + 1 :], "--skip-server-warmup"]
    flags += ["--speculative-draft-model-path", f"{model}-assistant", *MTP] if asked.mtp else []
    folder = asked.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    texts, whole = prompts(asked.longest, model), "tiny" not in model
    with contextlib.ExitStack() as inside:
        address = meanwhile(server(folder / "alone.log", flags), inside)
        if not asked.together:
            alone = answers(address(), texts, whole)
            inside.close()
        both = pair(folder, flags, asked, texts, whole)
        if asked.together:
            alone = answers(address(), texts, whole)
    same = sum(map(list.__eq__, alone["tokens"], both["tokens"])) / len(texts)
    asked.out.write_text(json.dumps({"same": same, "alone": alone, "pair": both, "words": list(words)}, indent=1) + "\n")
    planned = bool(both["plan"]) or asked.prefill_tp == asked.decode_tp
    print(f"{same:.0%} of {len(texts)} answers alike; first token alone {alone['first']}, pair {both['first']} s; plan logged: {planned}")
    return int(same < asked.same or not planned)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
