"""The requests of ``test_mtp_lifecycle``, the same for plain decoding and for MTP, and how to read what the scheduler did with them."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_gemma4.tiny import chat_format, dialogues
from tests.harness.engine_fork import Group, Output
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

MODEL = "tiny-e2b"
ENGINE: dict[str, Any] = {
    "chunked_prefill_size": 64,
    "enable_mixed_chunk": True,
    "max_total_tokens": 600,
    "constrained_json_disable_any_whitespace": True,
    "schedule_conservativeness": 0.01,
    "max_running_requests": 8,
}
MTP: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_draft_model_path": CHECKPOINTS / f"{MODEL}-assistant",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
NO_END = {"1": -100.0, "11": -100.0, "19": -100.0}
"""A logit bias that keeps an answer from ending. With ``ignore_eos`` SGLang would reserve the whole length asked for,
and retract no request."""


@dataclass
class Step:
    """One verify: the batch's rids and, for each, its accepted drafts."""

    rids: list[str]
    accepted: list[int]


def steps(log: str, *rids: str) -> list[Step]:
    """The verifies that had one of these rids, or a rid that begins with one of them, in order."""
    found = [Step(**json.loads(line)) for line in re.findall(r"VERIFY (\{.*\})", log)]
    return [step for step in found if any(rid.startswith(rids) for rid in step.rids)]


def greedy(tokens: int, **more: Any) -> dict[str, Any]:
    """Sampling parameters."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}


def chats(count: int, seed: int) -> list[str]:
    """Rendered questions; the assistant drafts their answers well."""
    rng = random.Random(seed)
    return [chat_format.render(dialogues.chat(rng, "held_out", turns=1), prompt_only=True) for _ in range(count)]


def timed(prompts: Sequence[Any], sampling: Sequence[Mapping[str, Any]], requests: Sequence[Mapping[str, Any]]) -> Group:
    """Requests for ``timeline.play``."""
    return Group(list(prompts), list(sampling), client="timeline:play", extra={"requests": list(requests)})


def named(name: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """That many rids, sent at once."""
    return [{"rid": f"{name}-{number}", **more} for number in range(count)]


def groups() -> dict[str, Group]:
    """Every group by the name of its test."""
    texts = text_prompts(MODEL, [14, 31, 17, 45, 150, 201, 90, 12])
    stories = text_prompts(MODEL, [21, 33, 18, 40, 24, 17, 29, 30, 25, 38])
    strange = [[2, *(random.Random(seed).randrange(300, 1000) for _ in range(20))] for seed in range(3)]
    some = [{"rid": rid} for rid in ("bad-4", "good-0", "bad-5", "good-1")]
    return {
        "none_accepted": timed(texts[:4], [greedy(20)] * 4, named("bad", 4)),
        "some_accepted": timed(texts[:4], [greedy(20)] * 4, some),
        "strange": timed(strange, [greedy(30)] * 3, named("strange", 3)),
        "together": timed([texts[0]] * 4, [greedy(17)] * 4, named("gate4.same", 4)),
        "coming_and_going": timed(
            [*stories[:6], texts[7]],
            [greedy(tokens) for tokens in (60, 7, 45, 3, 60, 1, 16)],
            [
                {"rid": "life-a"},
                {"rid": "life-b"},
                {"rid": "life-c", "after": ["life-a", 6]},
                {"rid": "life-d", "after": ["life-c", 5]},
                {"rid": "life-e", "after": ["life-b", -1]},
                {"rid": "life-f", "after": ["life-e", 10]},
                {"rid": "life-g", "after": ["life-e", -1]},
            ],
        ),
        "retracted": timed(stories, [greedy(110, ignore_eos=False, logit_bias=NO_END)] * 10, named("gate10.tight", 10)),
        "aborted": timed(
            [*stories[:3], texts[5], texts[3], texts[5][::-1]],
            [greedy(96)] * 4 + [greedy(30)] * 2,
            [
                {"rid": "stay-0"},
                {"rid": "abort-1", "abort_at": 9},
                {"rid": "stay-2"},
                {"rid": "abort-3", "after": ["stay-0", 4], "abort_at": 0},
                {"rid": "stay-4", "after": ["stay-2", 6]},
                {"rid": "midchunk-5", "after": ["stay-0", 8]},
            ],
        ),
        "unaborted": timed(stories[1:2], [greedy(96)], named("whole", 1)),
        "chunked": timed(
            [texts[4], texts[0], texts[5], texts[6]],
            [greedy(60), greedy(96), greedy(60), greedy(60)],  # the second is still decoded when the third comes, on a busy machine too
            [
                {"rid": "chunk-0"},
                {"rid": "chunk-1"},
                {"rid": "chunk-2", "after": ["chunk-1", 6]},
                {"rid": "chunk-3", "after": ["chunk-1", 6]},
            ],
        ),
        "grammar": grammar(),
        "logprobs": timed(
            texts[:4],
            [greedy(24), greedy(19), greedy(24), greedy(24, temperature=0.7, top_k=1)],
            [
                {"rid": "prob-0", "top_logprobs": 3},
                {"rid": "prob-1", "top_logprobs": 5},
                {"rid": "prob-2"},
                {"rid": "prob-3", "top_logprobs": 2},
            ],
        ),
        "stops": Group(chats(2, 3), [greedy(28)] * 2, client="timeline:stops", extra={"cuts": [2, 3, 4, 5, 6, 7]}),
        "biased": timed(
            chats(3, 5),
            [greedy(20, logit_bias={str(token): bias}) for token, bias in ((300, 3.0), (400, 6.0), (19, -50.0))],
            named("bias", 3),
        ),
        "penalised": timed(
            [*stories[:4], stories[0]],
            [
                greedy(32, frequency_penalty=0.8),
                greedy(32, presence_penalty=1.2),
                greedy(32, repetition_penalty=1.4),
                greedy(32, frequency_penalty=0.5, repetition_penalty=1.2),
                greedy(32),
            ],
            named("penalty", 5),
        ),
        "at_least": timed(chats(3, 8), [greedy(40, min_new_tokens=least, ignore_eos=False) for least in (14, 25, 0)], named("least", 3)),
    }


def grammar() -> Group:
    """Constrained requests beside free ones."""
    towns = ["Arvo", "Belm", "Corin", "Dask"]
    schema = {
        "type": "object",
        "properties": {"town": {"enum": towns}, "ruler": {"enum": ["Adela", "Bruno"]}},
        "required": ["town", "ruler"],
        "additionalProperties": False,
    }
    ends = {"ignore_eos": False}
    sampling = [
        greedy(60, json_schema=json.dumps(schema), **ends),
        greedy(24),
        greedy(40, regex=REGEX, **ends),
        greedy(40, ebnf=f'root ::= ("yes" | "no") " " ({" | ".join(json.dumps(town) for town in towns)}) "."', **ends),
        greedy(24),
        greedy(60, json_schema=json.dumps(schema), **ends),
    ]
    return timed(chats(6, 11), sampling, named("gate6.grammar", 6))


REGEX = r"(Arvo|Belm|Corin|Dask) is the town of [A-Z][a-z]{2,8}\."
TOWN_SENTENCE = r"(yes|no) (Arvo|Belm|Corin|Dask)\."


def overshot(output: Output) -> bool:
    """Whether its last verify accepted more than the answer holds: the answer ended inside an accepted run."""
    histogram: list[int] = output.meta_info["spec_correct_drafts_histogram"]
    committed = 1 + sum((drafts + 1) * times for drafts, times in enumerate(histogram))
    return committed > len(output.token_ids)
