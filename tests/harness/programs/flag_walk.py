"""A random walk over combinations of ``launch_server``'s flags: transformers' tokens, or one line of refusal before weights are loaded.

    python -m tests.harness.programs.flag_walk FIRST [LAST]

A seed is a combination: a tiny model; pages, chunks and pools of many sizes, some of which cannot be; policies, MTP, overlap, radix and
hierarchical cache, ranks, KV formats and LoRA. Answers over a KV cache that loses bits are those of the same format without the rest.
A combination that does neither prints the command that repeats it. Exit status 1 if there was one. It takes some 4 s a seed.
"""

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sglang_gemma4.diagnostics import flag_table
from sglang_gemma4.kernels.kv_cache.formats import FORMATS
from tests.engine.test_dropped_layers import HOST, HOST_ENV
from tests.engine.test_two_ranks import RANKS
from tests.harness.engine_fork import EngineFailed, Group, Nursery
from tests.harness.oracles.reference import CHECKPOINTS, greedy_all, text_prompts

MODELS = ("tiny-26b-a4b", "tiny-e2b", "tiny-31b")
NEW_TOKENS = 16
LENGTHS = (9, 70, 140)
"""Tokens of the first prompts: the last is longer than two windows. A fourth begins as the third does."""
VALUES: dict[str, tuple[float, tuple[Any, ...]]] = {
    "page_size": (0.6, (1, 4, 16, 64, 128)),
    "chunked_prefill_size": (0.7, (-1, 128, 256, 512)),
    "max_total_tokens": (0.5, (400, 640, 1200, 4096)),
    "swa_full_tokens_ratio": (0.25, (0.5, 0.8, 1.0)),
    "context_length": (0.15, (256, 512)),
    "max_running_requests": (0.4, (1, 2, 3, 8)),
    "max_prefill_tokens": (0.2, (16, 64, 256)),
    "prefill_max_requests": (0.1, (1, 2)),
    "schedule_policy": (0.3, ("lpm", "random", "fcfs", "dfs-weight", "lof", "hrrn", "shortest-prefill-first", "routing-key")),
    "schedule_conservativeness": (0.3, (0.0, 0.01, 0.3, 1.0, 3.0)),
    "disable_radix_cache": (0.15, (True,)),
    "radix_eviction_policy": (0.1, ("lfu", "slru", "lru")),
    "enable_mixed_chunk": (0.15, (True,)),
    "num_continuous_decode_steps": (0.1, (1, 3)),
    "prefill_decode_interval": (0.1, (0, 2)),
    "stream_interval": (0.1, (1, 8)),
    "sampling_backend": (0.1, ("pytorch", "flashinfer")),
    "grammar_backend": (0.2, ("xgrammar", "llguidance", "outlines", "none")),
    "enable_unified_memory": (0.06, (True,)),
    "cpu_offload_gb": (0.05, (1,)),
    "model_impl": (0.05, ("sglang",)),
    "enable_return_hidden_states": (0.05, (True,)),
    "tp_size": (0.07, (2,)),
    "pp_size": (0.07, (2,)),
    "ep_size": (0.03, (2,)),
    "attn_dp_size": (0.03, (2,)),
    "dp_size": (0.03, (2,)),
    "enable_streaming_session": (0.06, (True,)),
}
"""By flag: how often it is given, and its values."""
SMALL_CHUNKS = (3, 16, 32, 48, 64)
"""Further values of --chunked-prefill-size, drawn where they are whole pages."""
ODD: dict[str, tuple[Any, ...]] = {
    "page_size": (0, -1, 3, 5),
    "chunked_prefill_size": (0, 3, 15, 96),
    "max_total_tokens": (0, 8, 32),
    "swa_full_tokens_ratio": (0.0, 0.05, 0.1, 0.3, 1.5),
    "context_length": (0, 8192),
    "max_running_requests": (0, -1),
    "max_prefill_tokens": (0,),
    "prefill_max_requests": (0,),
    "mem_fraction_static": (0.0, 1.0),
    "disable_hybrid_swa_memory": (True,),
    "model_impl": ("transformers",),
    "offload_group_size": (1,),
    "schedule_policy": ("priority",),
    "enable_deterministic_inference": (True,),
    "kv_cache_dtype": ("nvfp4",),
    "speculative_algorithm": ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH"),
    "speculative_num_draft_tokens": (1, 3, 9),
    "lora_paths": (["/nowhere"],),
    "attention_backend": ("flashinfer", "torch_native"),
}
"""Values of which few can be served."""
MTP_VALUES: dict[str, tuple[float, tuple[Any, ...]]] = {
    "speculative_num_steps": (0.8, (1, 2, 3, 4, 5)),
    "speculative_eagle_topk": (0.2, (1, 2)),
    "speculative_adaptive": (0.1, (True,)),
    "speculative_attention_mode": (0.1, ("prefill", "decode")),
    "speculative_use_rejection_sampling": (0.03, (True,)),
    "speculative_accept_threshold_single": (0.06, (0.5, 1.0)),
}


@dataclass
class Combination:
    """A model with flags, and what a CPU needs around them."""

    seed: int
    model: str
    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The command that repeats it, and its flags as an operator types them."""
        given = {name: value for name, value in self.flags.items() if value is not False}
        return f"python -m tests.harness.programs.flag_walk {self.seed}  # {self.model} {flag_table.typed(given)}"


class Walk:
    """Combinations that are tried on engines of one nursery."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self._lossy: dict[tuple[str, str], list[list[int]]] = {}

    def problem(self, seed: int) -> str | None:
        """None where the answers of a seed's combination are right or it is refused in time; else what it did, with the command."""
        tried = combination(seed)
        try:
            found = self.answers(tried.model, tried.flags, tried.env)
        except EngineFailed as error:
            line = refusal(str(error))
            if line is None or "Load weight begin" in self._log():
                return f"{tried}\n{error}"
            print(f"{tried}\n    refused: {line}")
            return None
        print(f"{tried}\n    answers")
        expected = self.tokens(tried.model, tried.flags.get("kv_cache_dtype", "auto"))
        wrong = [place for place, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
        return f"{tried}\nanswers {wrong} of {len(found)} differ from the reference; log: {self._log_path()}" if wrong else None

    def tokens(self, model: str, kv: str) -> list[list[int]]:
        """What is right: transformers' tokens, or those over such a cache alone."""
        if kv not in FORMATS:
            return right(model)
        if (model, kv) not in self._lossy:
            self._lossy[model, kv] = self.answers(model, {"kv_cache_dtype": kv}, {})
        return self._lossy[model, kv]

    def answers(self, model: str, flags: Mapping[str, Any], env: Mapping[str, str]) -> list[list[int]]:
        """Greedy tokens of an engine with these flags.

        Raises:
            EngineFailed: it refused, ended or answered with an error.
        """
        group = Group(prompts(model), {"max_new_tokens": NEW_TOKENS})
        return [one.token_ids for one in self.nursery.run(CHECKPOINTS / model, [group], env, 90.0, **flags)[0]]

    def _log_path(self) -> Path:
        return self.nursery.log_folder / f"case{self.nursery.cases}.log"

    def _log(self) -> str:
        return self._log_path().read_text(errors="replace")


@cache
def prompts(model: str) -> list[list[int]]:
    """Short to long, two with a common beginning."""
    some = text_prompts(model, [*LENGTHS, 40])
    return [*some[:3], some[2][:100] + some[3][1:]]


@cache
def right(model: str) -> list[list[int]]:
    """Transformers' tokens after the prompts."""
    return greedy_all(model, prompts(model), NEW_TOKENS)


def refusal(error: str) -> str | None:
    """The line with which this package or SGLang's own check of arguments refused; None where nothing did."""
    head = error.split("\n--- end of", 1)[0].strip()
    own = re.search(r"PreflightError: (.+)$", head)
    if own:
        return own[1]
    stock = re.search(r"^(?:ValueError|AssertionError|NotImplementedError): (\S.+)", head.splitlines()[-1])
    return stock[1] if stock and ("/sglang/srt/arg_groups/" in head or "/sglang/srt/server_args.py" in head) else None


def combination(seed: int) -> Combination:
    """What a seed stands for."""
    rng = random.Random(seed)
    made = Combination(seed, rng.choice(MODELS))
    made.flags |= _drawn(VALUES, rng)
    page = made.flags.get("page_size", 1)
    if rng.random() < 0.3 and (chunks := [size for size in SMALL_CHUNKS if size % page == 0]):
        made.flags["chunked_prefill_size"] = rng.choice(chunks)
    if rng.random() < 0.5:
        _draft(made, rng)
    if rng.random() < 0.3:
        made.flags["disable_overlap_schedule"] = False
        made.env["TEST_INSTRUMENTS"] = "loop_modes:overlapping"
    for chance, add in ((0.15, _host_cache), (0.15, _kv_format), (0.12, _lora)):
        if rng.random() < chance:
            add(made, rng)
    if rng.random() < 0.25:
        made.flags |= {name: rng.choice(ODD[name]) for name in rng.sample(sorted(ODD), 1)}
    _two_ranks(made.flags)
    if {"tp_size", "pp_size", "dp_size"} & set(made.flags):
        if made.model == "tiny-e2b" and "pp_size" in made.flags and rng.random() < 0.7:
            made.env["SGLANG_PP_LAYER_PARTITION"] = "3,7"  # layers that share KV on one stage
        made.env |= RANKS | {"TEST_INSTRUMENTS": f"{RANKS['TEST_INSTRUMENTS']} {made.env.get('TEST_INSTRUMENTS', '')}".strip()}
    return made


def _drawn(values: Mapping[str, tuple[float, tuple[Any, ...]]], rng: random.Random) -> dict[str, Any]:
    return {name: rng.choice(of) for name, (chance, of) in values.items() if rng.random() < chance}


def _two_ranks(flags: dict[str, Any]) -> None:
    """At most two: stages or replicas alone, or heads with experts or attention."""
    alone = next((name for name in ("pp_size", "dp_size") if name in flags), None)
    if alone:
        for name in {"tp_size", "ep_size", "attn_dp_size", "pp_size", "dp_size"} - {alone}:
            flags.pop(name, None)
    elif {"ep_size", "attn_dp_size"} & set(flags):
        flags["tp_size"] = 2


def _draft(made: Combination, rng: random.Random) -> None:
    made.flags |= {"speculative_draft_model_path": "auto", **_drawn(MTP_VALUES, rng)}


def _host_cache(made: Combination, rng: random.Random) -> None:
    made.flags |= HOST | {"hicache_write_policy": rng.choice(("write_through", "write_back", "write_through_selective"))}
    made.env["TEST_INSTRUMENTS"] = f"{made.env.get('TEST_INSTRUMENTS', '')} {HOST_ENV['TEST_INSTRUMENTS']}".strip()


def _kv_format(made: Combination, rng: random.Random) -> None:
    made.flags["kv_cache_dtype"] = rng.choice(tuple(FORMATS))


def _lora(made: Combination, rng: random.Random) -> None:
    """Room for adapters, which no request names."""
    made.flags |= {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj", "o_proj"]}
    made.flags["max_loras_per_batch"] = rng.choice((1, 4))


def problems(nursery: Nursery, seeds: range) -> Iterator[str]:
    """Those of some seeds."""
    walk = Walk(nursery)
    yield from filter(None, map(walk.problem, seeds))


def main() -> int:
    """Walk from one seed to another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    given = parser.parse_args()
    nursery = Nursery(Path(tempfile.mkdtemp(prefix="flag-walk-")))
    count = 0
    try:
        for problem in problems(nursery, range(given.first, (given.last or given.first) + 1)):
            count += 1
            print(f"PROBLEM {problem}", flush=True)
    finally:
        nursery.close()
    print(f"{count} problems; logs in {nursery.log_folder}")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
