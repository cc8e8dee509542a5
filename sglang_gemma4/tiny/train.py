"""Train one tiny family from nothing: text and images made here, target, then assistant, then evaluation.

    python -m sglang_gemma4.tiny.train --prepare /tmp/tiny-data                                  # tokenizer and rows, once
    python -m sglang_gemma4.tiny.train --data /tmp/tiny-data --family tiny-e2b --out checkpoints --device cuda
    python -m sglang_gemma4.tiny.train --prepare /tmp/12b-data --family tiny-12b --rows 8000 --pictures 720    # its own data

Everything follows from `--seed`, except that a run hurries its schedule when it would pass `--seconds`.
"""

import argparse
import json
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from sglang_gemma4.tiny import batches, chat_format, families, images, media_rows, sounds, unified
from sglang_gemma4.tiny import tokenizer as tiny_tokenizer

SHARD_ROWS = 500
HISTORY = ("command", "device", "seed", "data_seed", "target_training")


def _shard(folder: Path, pictures: batches.Pictures, job: tuple[int, int]) -> tuple[batches.Array, batches.Array]:
    """Rows of text, and an eighth as many rows of images, for (seed, rows)."""
    encoder, (seed, rows) = batches.Encoder(tiny_tokenizer.load_raw(folder), pictures), job
    return batches.text_rows(encoder, seed, rows), batches.image_rows(encoder, seed, -(-rows // 8))


def prepare(path: Path, *, rows: int, pictures: int, seed: int, workers: int) -> None:
    """Write a tokenizer, a pool of images and packed rows to ``path``; deterministic in ``seed`` and the sizes.

    The tokenizer is the same for every seed."""
    if pictures >= images.HELD_OUT_SEED:
        raise ValueError(f"{pictures} pictures reach into the held-out seeds; use fewer than {images.HELD_OUT_SEED}")
    path.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    tiny_tokenizer.train().save(str(path / "tokenizer.json"))
    drawn = batches.picture_pool(pictures)
    jobs = [(seed * 100_000 + i, min(SHARD_ROWS, rows - at)) for i, at in enumerate(range(0, rows, SHARD_ROWS))]
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        text, image = (np.concatenate(parts) for parts in zip(*pool.map(partial(_shard, path, drawn), jobs), strict=True))
    np.savez(path / "rows.npz", text=text, image=image, patches=drawn.patches, positions=drawn.positions, seed=seed)
    tokens = sum(int((made["document"] >= 0).sum()) for made in (text, image))
    print(f"prepared {tokens / 1e6:.1f} M tokens, {pictures} images in {time.time() - begin:.0f} s", flush=True)


def prepare_media(path: Path, *, rows: int, pictures: int, seed: int) -> None:
    """The same for the unified family, whose images are patches of one soft token each; half as many rows have images and audio.

    There are as many audio clips as images; they are not stored but drawn again for training."""
    path.mkdir(parents=True, exist_ok=True)
    raw = tiny_tokenizer.train()
    raw.save(str(path / "tokenizer.json"))
    drawn = media_rows.pool(pictures, pictures)
    encoder = media_rows.MediaEncoder(raw, drawn)
    text, image = batches.text_rows(encoder, seed, rows), media_rows.media_rows(encoder, seed, -(-rows // 2))
    np.savez_compressed(
        path / "rows.npz", text=text, image=image, patches=drawn.patches, positions=drawn.positions, sounds=pictures, seed=seed
    )


def _drawn(data: dict[str, Any]) -> batches.Pictures:
    """The images, and audio if any, of prepared data."""
    if "sounds" in data:
        return media_rows.media(data["patches"], data["positions"], sounds.pool(int(data["sounds"])))
    return batches.Pictures(data["patches"], data["positions"], [], {})


def train_family(args: argparse.Namespace) -> None:
    """Train one family and write its target, assistant, files and RESULTS below ``args.out``."""
    import torch

    from sglang_gemma4.tiny import evaluate, export, training
    from sglang_gemma4.tiny.packed_forward import keep_norms_in_float32

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    keep_norms_in_float32()
    data = dict(np.load(args.data / "rows.npz"))
    raw = tiny_tokenizer.load_raw(args.data)
    pictures = _drawn(data)
    target = training.build_target(args.family, export.special_ids(raw), args.seed)
    if args.resume:
        target.load_state_dict(type(target).from_pretrained(args.resume / args.family, dtype=torch.float32).state_dict())
    target.to(args.device)
    encoder = batches.Encoder(raw)

    def probe(model: Any) -> str:
        return f"four-choice {evaluate.four_choice_accuracy(model, encoder, number=120):.3f}"

    def course(steps: int, seconds: float, lr: float, seed: int) -> training.Course:
        return training.Course(data["text"], data["image"], pictures, steps, seconds, lr, seed, tuple(args.sizes))

    earlier = args.resume / "RESULTS.json" if args.resume else None
    record: dict[str, Any] = {
        "resumed_from": {k: json.loads(earlier.read_text())[args.family][k] for k in HISTORY} if earlier else None,
        "seed": args.seed,
        "data_seed": int(data["seed"]),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "cpu",
        "command": "python -m sglang_gemma4.tiny.train " + " ".join(sys.argv[1:]),
    }
    record["target_training"] = training.train_target(args.family, target, course(args.steps, args.seconds, args.lr, args.seed), probe)
    if families.is_unified(args.family):
        unified.save(target, raw, args.out / args.family)
    else:
        export.save_target(target, raw, args.out / args.family)
    # The assistant learns from the target as it will be served: rounded to bfloat16 once, run in float32.
    target = target.to(args.device, torch.float32)
    assistant = training.build_assistant(args.family, args.seed + 1).to(args.device)
    said = evaluate.continuations(target, raw, chat_format.has_empty_thought(args.family))
    record["assistant_training"] = training.train_assistant(
        args.family,
        target,
        assistant,
        course(args.assistant_steps, args.assistant_seconds, args.assistant_lr, args.seed + 1),
        lambda a: evaluate.accept_lengths(target, a, said),
        args.accept_until,
    )
    export.save_assistant(assistant, raw, args.out / f"{args.family}-assistant")
    torch.set_float32_matmul_precision("highest")
    if not args.unmeasured:
        record.update(evaluate.measure(args.out, args.family, args.device))
    export.write_json(args.out / f"RESULTS-{args.family}.json", record)
    print(args.family, record, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--family", choices=families.TEXT)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--pictures", type=int, default=1920)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--sizes", type=int, nargs=2, default=(16, 2), help="text and image rows a step")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--assistant-steps", type=int, default=2500)
    parser.add_argument("--assistant-seconds", type=float, default=1e9)
    parser.add_argument("--assistant-lr", type=float, default=2e-3)
    parser.add_argument("--accept-until", type=float, default=2.9, help="stop the assistant at this accept length")
    parser.add_argument("--resume", type=Path, help="directory of trained targets to go on from")
    parser.add_argument("--unmeasured", action="store_true", help="leave the evaluation to sglang_gemma4.tiny.evaluate")
    args = parser.parse_args()
    if args.prepare and args.family and families.is_unified(args.family):
        prepare_media(args.prepare, rows=args.rows, pictures=args.pictures, seed=args.seed)
    elif args.prepare:
        prepare(args.prepare, rows=args.rows, pictures=args.pictures, seed=args.seed, workers=args.workers)
    elif args.data and args.family and args.out:
        train_family(args)
    else:
        parser.error("give --prepare DIR, or --data DIR --family NAME --out DIR")


if __name__ == "__main__":
    main()
