"""What sampled answers must be distributed as, from transformers' logits in float32, and the tests of it.

Two statistics, both chi-square. Of whole answers to one prompt: counts of answers against their joint probabilities. Of answers to any
prompts, under any parameters: the probability integral transform. At each token, with the conditional probabilities in descending order,
the mass before the drawn token plus a random part of its own is uniform exactly when the token was drawn from that distribution; the
values of all tokens go into equal bins.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.stats import chi2

BINS = 40
SMALLEST = 8.0
"""Expected count below which answers are put together."""
FEWEST = 10
"""Cells without which a test would say little."""


@torch.no_grad()
def conditionals(model: Any, prompt: Sequence[int], answers: Sequence[Sequence[int]], rows: int = 128) -> torch.Tensor:
    """Logits before each token of each answer: [answers, tokens, vocabulary]; all answers have the same length."""
    found = []
    for start in range(0, len(answers), rows):
        ids = torch.tensor([[*prompt, *answer] for answer in answers[start : start + rows]])
        found.append(model(input_ids=ids).logits[:, len(prompt) - 1 : -1].float())
    return torch.cat(found)


def probabilities(logits: torch.Tensor, sampling: Mapping[str, float]) -> torch.Tensor:
    """SGLang's sampling distribution, [..., vocabulary] float64: temperature; then ``top_k``, ``top_p`` and ``min_p``, each judged by the
    whole softmax, as in ``top_k_top_p_min_p_sampling_from_probs_torch`` (layers/sampler.py)."""
    probs = torch.softmax(logits.double() / sampling["temperature"], -1)
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    keep = before <= sampling.get("top_p", 1.0)
    keep &= torch.arange(ordered.shape[-1]) < sampling.get("top_k", ordered.shape[-1])
    keep &= ordered >= sampling.get("min_p", 0.0) * ordered[..., :1]
    kept = torch.zeros_like(probs).scatter_(-1, index, ordered * keep)
    return kept / kept.sum(-1, keepdim=True)


@torch.no_grad()
def likely(model: Any, prompt: Sequence[int], tokens: int, sampling: Mapping[str, float], least: float) -> dict[tuple[int, ...], float]:
    """Every answer of so many tokens whose probability is at least ``least``, and that probability."""
    front: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        logits = model(input_ids=torch.tensor([[*prompt, *prefix] for prefix in front])).logits[:, -1]
        joint = probabilities(logits, sampling) * torch.tensor(list(front.values()), dtype=torch.float64)[:, None]
        prefixes = list(front)
        rows, columns = (joint >= least).nonzero(as_tuple=True)
        found = zip(rows.tolist(), columns.tolist(), joint[rows, columns].tolist(), strict=True)
        front = {(*prefixes[row], column): probability for row, column, probability in found}
    return front


def joint_p_value(model: Any, prompt: Sequence[int], answers: Sequence[Sequence[int]], sampling: Mapping[str, float]) -> float:
    """Chi-square of the whole answers; all that are expected seldom count as one."""
    counts = Counter(tuple(answer) for answer in answers)
    cells = likely(model, prompt, len(answers[0]), sampling, SMALLEST / len(answers))
    if len(cells) < FEWEST:
        raise ValueError(f"{len(cells)} answers are likely enough to be counted; take a prompt that leaves more to chance")
    statistic = sum((counts[answer] - len(answers) * p) ** 2 / (len(answers) * p) for answer, p in cells.items())
    others, rest = len(answers) - sum(counts[answer] for answer in cells), len(answers) * (1 - sum(cells.values()))
    return float(chi2.sf(statistic + (others - rest) ** 2 / rest, len(cells)))


def transform(
    model: Any, prompt: Sequence[int], answers: Sequence[Sequence[int]], sampling: Mapping[str, float], skip: int, seed: int = 0
) -> torch.Tensor:
    """The probability integral transform of every token but the first ``skip`` of each answer, [tokens]; 1 for an impossible one."""
    drawn = torch.tensor(answers)[:, skip:]  # [answers, tokens]
    probs = probabilities(conditionals(model, prompt, answers)[:, skip:], sampling)
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    place = (index == drawn[..., None]).long().argmax(-1, keepdim=True)
    own = ordered.gather(-1, place).squeeze(-1)
    before = (ordered.cumsum(-1).gather(-1, place)).squeeze(-1) - own
    coins = torch.rand(own.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.where(own > 0, before + coins * own, 1.0).flatten()


def uniform_p_value(values: torch.Tensor) -> float:
    """Chi-square of equal bins over [0, 1]."""
    counts = torch.histc(values, BINS, 0.0, 1.0)
    expected = len(values) / BINS
    return float(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), BINS - 1))
