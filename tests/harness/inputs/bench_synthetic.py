"""A run as the benchmark writes it, with invented times of a known shape, for the tests of reports and plots."""

import random
from pathlib import Path
from typing import Any

from sglang_gemma4.benchmark import records

ARMS = [
    {"name": "stock", "environment": {"SGLANG_GEMMA4": "0"}, "arguments": []},
    {"name": "package", "environment": {}, "arguments": []},
    {
        "name": "mtp",
        "environment": {},
        "arguments": ["--speculative-algorithm=NEXTN", "--speculative-num-steps=3", "--speculative-draft-model-path=assistant"],
    },
]
SPEED = {"stock": 1.0, "package": 1.12, "mtp": 1.7}
WORKLOADS = [("chat", 1000, 1000, 80, None, 0), ("images", 100, 20, 100, None, 6), ("single", 1000, 500, 4, 1, 0)]
WORKLOADS += [(f"sweep-{size}", 1000, 200, size, None, 0) for size in (1, 4, 16, 64)]
CATEGORIES = {"moe experts": 0.36, "attention": 0.20, "dense gemm": 0.16, "norm": 0.07, "logits": 0.06, "copy": 0.04, "rope": 0.03}
CATEGORIES |= {"moe routing": 0.025, "kv write": 0.025, "activation": 0.02, "other": 0.01}


def header(**changes: Any) -> dict[str, Any]:
    """A header's values."""
    names = ("name", "input_tokens", "output_tokens", "requests", "concurrency", "images")
    return {
        "command": ["sglang-gemma4", "bench", "ab", "--model", "google/gemma-4-26B-A4B-it", "--arm", "stock", "--arm", "package"],
        "model": "google/gemma-4-26B-A4B-it",
        "dummy_weights": False,
        "dry_run": False,
        "rounds": 2,
        "repetitions": 6,
        "arms": ARMS,
        "workloads": [dict(zip(names, values, strict=True), image_size=480 if values[5] else 0) for values in WORKLOADS],
        "batches": [1, 8, 64],
        "versions": {"sglang": "0.5.23", "sglang-gemma4": "0.1.0", "torch": "2.14.1"},
        "device": {"name": "NVIDIA H200", "count": 1, "memory_gib": 139.8, "driver": "570.1"},
        "environment": {"CUDA_VISIBLE_DEVICES": "0"},
        "notes": [],
    } | changes


def settings(arm: str, round_number: int) -> dict[str, Any]:
    """What a server settled on: MTP lowers the request limit, pools drift a little."""
    return {
        "attention_backend": "triton",
        "port": 30000 + round_number,
        "max_running_requests": 48 if arm == "mtp" else 80,
        "max_total_num_tokens": (500_000 if arm == "mtp" else 800_000) + 1000 * round_number,
        "weights_gb": 48.52,
        **({"speculative_algorithm": "FROZEN_KV_MTP", "speculative_num_draft_tokens": 4} if arm == "mtp" else {}),
    }


def write(folder: Path, arms: tuple[str, ...] = ("stock", "package", "mtp"), repetitions: int = 3, rounds: int = 2, **changes: Any) -> Path:
    """A whole run of ``rounds`` times ``repetitions`` counted repetitions, and one warm-up each; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    raw, rng = folder / records.NAME, random.Random(0)
    records.append(raw, "header", **header(arms=[arm for arm in ARMS if arm["name"] in arms], **changes))
    for round_number in range(rounds):
        for arm in arms:
            for process in ("server", "engine"):
                who = {"arm": arm, "round": round_number}
                patches = {} if arm == "stock" else {"router_scale": "active", "sync_mtp": "off"}
                seconds = 60 + 5 * rng.random()
                records.append(raw, "start", **who, process=process, seconds=seconds, settings=settings(arm, round_number), patches=patches)
            for repetition in range(-1, repetitions):
                _workloads(raw, rng, who, repetition)
                _steps(raw, rng, who, repetition)
    for arm in arms:
        for stage, batch in (("prefill", 8), ("decode", 1), ("decode", 64)):
            _profile(raw, arm, stage, batch)
    return folder


def _workloads(raw: Path, rng: random.Random, who: dict[str, Any], repetition: int) -> None:
    for name, _, output_tokens, requests, _, _ in WORKLOADS:
        slow = 0.1 if repetition < 0 else 1.0  # a warm-up that counted would show
        rate = 200 * requests**0.62 * SPEED[who["arm"]] * rng.gauss(1, 0.006) * slow
        records.append(
            raw,
            "repetition",
            **who,
            workload=name,
            repetition=repetition,
            counted=repetition >= 0,
            seconds=requests * output_tokens / rate,
            completed=requests,
            failed=0,
            output_tokens=requests * output_tokens,
            output_throughput=rate,
            input_throughput=rate,
            ttft_ms=[rng.lognormvariate(5, 0.8) / SPEED[who["arm"]] for _ in range(requests)],
            tpot_ms=[rng.gauss(12, 1.2) / SPEED[who["arm"]] for _ in range(requests)],
            accept_length=rng.gauss(2.7, 0.03) if who["arm"] == "mtp" else None,
            full_pool_peak=0.42,
            swa_pool_peak=0.77,
            running_peak=min(requests, 80),
            queue_peak=0,
            retractions=0,
            prefill_tokens=requests * 1000,
            memory_peak_gib=121.3,
        )


def _steps(raw: Path, rng: random.Random, who: dict[str, Any], repetition: int) -> None:
    for batch in (1, 8, 64):
        accept = rng.gauss(2.6, 0.02) if who["arm"] == "mtp" else None
        milliseconds = (4.5 + 0.12 * batch) / SPEED[who["arm"]] * (accept or 1) * rng.gauss(1, 0.004) * (10 if repetition < 0 else 1)
        records.append(
            raw,
            "step",
            **who,
            batch=batch,
            repetition=repetition,
            counted=repetition >= 0,
            input_tokens=1000,
            output_tokens=128,
            prefill_ms=20.0 + 6 * batch,
            step_ms=milliseconds,
            output_throughput=batch * (accept or 1) / milliseconds * 1000,
            accept_length=accept,
        )


def _profile(raw: Path, arm: str, stage: str, batch: int) -> None:
    total, steps = (40_000.0 if stage == "prefill" else 4000 + 110.0 * batch) / SPEED[arm], 8
    records.append(
        raw,
        "profile",
        arm=arm,
        round=0,
        stage=stage,
        batch=batch,
        context_tokens=1000,
        tokens_per_request=4 if arm == "mtp" and stage == "decode" else 1,
        steps=steps,
        kernels=[
            {"name": f"{category}_kernel", "category": category, "microseconds": share * total * steps, "launches": 30 * steps}
            for category, share in CATEGORIES.items()
        ],
        roofline={
            "bandwidth_gbs": 4800.0,
            "teraflops": 989.0,
            "source": "data sheet",
            "categories": [
                {"category": name, "bytes": 1e9, "flops": 1e12, "microseconds": 1000.0 * share}
                for name, share in CATEGORIES.items()
                if share > 0.1
            ],
        },
    )
