"""Sampled answers under MTP on a card are distributed as those of plain decoding, cuts included; with SGLang's own cuts they are not.

Both sides run in bfloat16 on the same card, so one is compared with the other: a chi-square test over the first three tokens of an answer,
of which the second and third come out of verify steps. Seeds are fixed; the p-value below which it fails is not met by chance.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from scipy.stats import chi2_contingency

from sglang_gemma4.tiny import checkpoints
from tests.engine.test_mtp_sampling import JOINT, MIXED, P_VALUE
from tests.engine.test_oracle import Case
from tests.gpu.test_gpu import run_case
from tests.harness.engine_fork import Group, without
from tests.harness.inputs.drafting import MTP
from tests.harness.oracles.reference import text_prompts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILY = "tiny-26b-a4b"
ANSWERS, TOKENS, COMPARED = 8000, 4, 3
RARE = 20
"""Answers seen less often than this, both sides together, are counted as one."""
MODES = {"joint": JOINT, **MIXED}
DRAFT = {**MTP, "speculative_draft_model_path": f"{checkpoints.SHIPPED / FAMILY}-assistant"}
ARMS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "plain": ({}, {}),
    "mtp": ({}, DRAFT),
    "stock-cuts": (without("verify_cuts"), DRAFT),
}
Drawn = dict[str, dict[str, Counter[tuple[int, ...]]]]


class ManyOfEach(Case):
    """One prompt, many answers in each mode."""

    def __init__(self) -> None:
        super().__init__(checkpoints.SHIPPED / FAMILY, [], [])

    def groups(self) -> list[Group]:
        prompt = text_prompts(FAMILY, [42])[0]
        return [Group([prompt] * ANSWERS, {**mode, "max_new_tokens": TOKENS, "ignore_eos": True}) for mode in MODES.values()]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """By arm and mode: how often each beginning of an answer was drawn; all engines at once."""
    folder = tmp_path_factory.mktemp("engines")

    def one(arm: str) -> dict[str, Counter[tuple[int, ...]]]:
        env, engine = ARMS[arm]
        outputs = run_case(ManyOfEach(), folder, arm, env, max_running_requests=128, cuda_graph_max_bs_decode=128, **engine)
        groups = [outputs[start : start + ANSWERS] for start in range(0, len(outputs), ANSWERS)]
        return {mode: Counter(tuple(answer["token_ids"][:COMPARED]) for answer in group) for mode, group in zip(MODES, groups, strict=True)}

    with ThreadPoolExecutor(len(ARMS)) as pool:
        return dict(zip(ARMS, pool.map(one, ARMS), strict=True))


def p_value(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> float:
    """Of two-sample counts being draws from the same distribution."""
    both = one + other
    often = [answer for answer, count in both.items() if count >= RARE]
    rows = [[count[answer] for answer in often] for count in (one, other)]
    rest = [sum(count.values()) - sum(row) for count, row in zip((one, other), rows, strict=True)]
    if sum(rest):
        rows = [[*row, left] for row, left in zip(rows, rest, strict=True)]
    return float(chi2_contingency(rows).pvalue)


@pytest.mark.parametrize("mode", list(MODES))
def test_answers_are_distributed_as_plain_ones(mode: str, drawn: Drawn) -> None:
    found = p_value(drawn["plain"][mode], drawn["mtp"][mode])
    print(f"{mode}: {len(drawn['plain'][mode])} different beginnings of {ANSWERS}, p = {found:.3g}")
    assert found > P_VALUE


def test_sglang_s_own_cuts_are_seen(drawn: Drawn) -> None:
    assert p_value(drawn["plain"]["min-p"], drawn["stock-cuts"]["min-p"]) < P_VALUE
