"""Ask a server questions with sgl-eval's sampler, thread pool and grading; one row per answer."""

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4.quality import interrupt, results
from sglang_gemma4.quality.endpoint import Endpoint, short
from sglang_gemma4.quality.questions import Questions, colour_named, evaluator, evaluator_version

RETRIES = 2
EXTRAS = {"logprobs": True, "top_logprobs": 2, "return_meta_info": True}
"""Two log-probabilities per token: where two runs differ, the other run's token is nearly always the runner-up."""


class Sampler:
    """sgl-eval's chat sampler; it also records what was sent, and ends the run if the server gives no answer.

    After a refusal no more questions are asked, and those on their way are waited for. ``abort`` of sgl-eval closes their connections
    instead, and a thread that reads from a connection closed by another can wait until the read timeout, which is 4 hours.
    """

    def __init__(self, endpoint: Endpoint, model: str, opening: str) -> None:
        self.refused = threading.Event()
        self.inner = evaluator("sampler").ChatCompletionSampler(f"{endpoint.url}/v1", model, endpoint.api_key or "EMPTY", RETRIES)
        self.opening = opening

    def __call__(self, messages: Any, gen: Any) -> Any:
        """sgl-eval's ``Sample`` for one conversation.

        Raises:
            ValueError: the server refused, or did not answer. sgl-eval would count the question as answered wrongly.
        """
        if self.refused.is_set():
            raise evaluator("runner").WorkerAborted
        sample = self.inner(messages, gen)
        if sample.finish_reason == "error":
            said = str(sample.raw) if sample.raw else "no answer; did the server end?"
            self.refused.set()
            raise ValueError(
                f"a question could not be asked: {said[:300]}; the answers so far are kept, the same command goes on with them"
            )
        sample.raw = {"content": messages[-1]["content"], "text": sample.text, "choice": sample.raw.choices[0].model_dump()}
        sample.text = self.opening + sample.text
        return sample


def ask(
    kind: str,
    endpoint: Endpoint,
    out: Path,
    questions: Questions,
    *,
    model: str | None,
    concurrency: int,
    max_tokens: int | None,
    logprobs: bool,
) -> results.Record:
    """Ask all of ``questions`` at temperature 0 and return the summary; rows are written to ``out`` as they arrive.

    Args:
        kind: "mmlu" (letters, graded by sgl-eval) or "colors" (colour words).
        concurrency: requests in flight.
        max_tokens: limit of an answer in tokens; None takes that of ``questions``.
        logprobs: ask for log-probabilities too.

    Raises:
        ValueError: the server cannot be asked, or ``out`` holds another run.
        KeyboardInterrupt: SIGINT came; see :func:`interrupt.ending`.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"--max-tokens {max_tokens} leaves no answer; give 1 or more")
    name, _ = endpoint.model(model)
    limit = max_tokens if max_tokens is not None else questions.max_tokens
    gen = evaluator("types").GenConfig(0.0, max_tokens=limit, extra_body=EXTRAS if logprobs else {"return_meta_info": True})
    header = {
        "eval": kind,
        "questions": len(questions.examples),
        "dataset": questions.dataset,
        "evaluator": {
            "name": "sgl-eval",
            "version": evaluator_version(),
            "grading": "sgl-eval's letter extraction" if kind == "mmlu" else "first colour word of the answer",
            "temperature": 0.0,
            "max_tokens": limit,
            "logprobs": logprobs,
        },
        "concurrency": concurrency,
        **about(endpoint, name),
    }
    done = results.start(out, header)
    todo = [example for example in questions.examples if example.id not in done]
    if done:
        print(f"{out}: {len(done)} answers are there, {len(todo)} to go", file=sys.stderr)

    def keep(example: Any, _repeat: int, sample: Any, score: float, extracted: str | None) -> None:
        results.append(out, _row(example, sample, score, extracted))

    if todo:
        sampler = Sampler(endpoint, name, questions.opening)
        with interrupt.ending(sampler.inner.abort):
            _ask_all(kind, todo, questions.prompt_yaml, sampler, gen, concurrency, keep)
    summary = {**summarise(results.load(out).rows), "server_accept_length": endpoint.accept_length()}
    results.append(out, {"kind": "summary", **summary})
    return summary


def about(endpoint: Endpoint, model: str) -> results.Record:
    """The part of a header that describes the server."""
    return {"url": endpoint.url, "model": short(model), "server": endpoint.server(), "server_accept_length": endpoint.accept_length()}


def _ask_all(
    kind: str, todo: Sequence[Any], prompt_yaml: Path | None, sampler: Sampler, gen: Any, concurrency: int, keep: Callable[..., None]
) -> None:
    """Grade with sgl-eval's benchmark, or with its runner if there is no benchmark; ``keep`` gets each graded answer."""
    if kind == "mmlu":
        evaluator("registry").get("mmlu").run(
            sampler=sampler,
            gen=gen,
            n_repeats=1,
            num_examples=len(todo),
            num_threads=concurrency,
            predictions_writer=keep,
            load_examples=lambda _number: todo,
            prompt_yaml=prompt_yaml,
        )
        return
    content = evaluator("evals._vision").build_user_content

    def sample(example: Any, _repeat: int) -> Any:
        return sampler([{"role": "user", "content": content(example.inputs["problem"], example.media, "before")}], gen)

    def score(example: Any, sample: Any) -> tuple[float, str | None]:
        named = colour_named(sample.text)
        return float(named == example.target), named

    evaluator("runner").run_examples(kind, list(todo), sample, score, concurrency, on_sample_scored=keep)


def _row(example: Any, sample: Any, score: float, extracted: str | None) -> results.Record:
    sent, choice = sample.raw["content"], sample.raw["choice"]
    meta = choice.get("meta_info") or {}
    tokens = (choice.get("logprobs") or {}).get("content") or []
    chosen = meta.get("output_token_logprobs") or []
    prompt = sent if isinstance(sent, str) else "".join(part.get("text", "<image>") for part in sent)
    return {
        "kind": "row",
        "id": example.id,
        "hash": digest(sent),
        "prompt": prompt,
        "expected": example.target,
        "text": sample.raw["text"],
        "choice": extracted,
        "correct": bool(score),
        "finish_reason": sample.finish_reason,
        "tokens": [token["token"] for token in tokens],
        "token_ids": [token for _, token, _ in chosen],
        "logprobs": [round(value, 6) for value, _, _ in chosen],
        "runner_up": [_runner_up(top, own[1]) for top, own in zip(meta.get("output_top_logprobs") or [], chosen, strict=False)],
        "completion_tokens": sample.completion_tokens,
        "verify_steps": meta.get("spec_verify_ct"),
        "correct_drafts": meta.get("spec_num_correct_drafts"),
        "seconds": round(sample.generation_end_time - sample.generation_start_time, 4),
    }


def _runner_up(top: Sequence[Sequence[Any]], chosen: int) -> list[Any]:
    """[token id, log-probability] of the best token that was not chosen."""
    return next(([token, round(value, 6)] for value, token, _ in top if token != chosen), [None, None])


def digest(sent: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of what was sent, images included."""
    return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()[:16]


def summarise(rows: Sequence[results.Record]) -> results.Record:
    """Accuracy and the counts behind it."""
    correct = sum(row["correct"] for row in rows)
    return {
        "questions": len(rows),
        "correct": correct,
        "accuracy": correct / len(rows),
        "no_choice": sum(row["choice"] is None for row in rows),
        "cut_at_max_tokens": sum(row["finish_reason"] == "length" for row in rows),
        "completion_tokens": sum(row["completion_tokens"] or 0 for row in rows),
        "accept_length": accept_length(rows),
    }


def accept_length(rows: Sequence[results.Record]) -> float | None:
    """Tokens per verify step over all answers: 1 + correct drafts / verify steps; None without speculative decoding.

    As SGLang counts: drafts accepted after a stop token are included, so one-word answers have too high a value.
    """
    steps = sum(row.get("verify_steps") or 0 for row in rows)
    return 1 + sum(row.get("correct_drafts") or 0 for row in rows) / steps if steps else None
