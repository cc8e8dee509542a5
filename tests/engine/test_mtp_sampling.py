"""Sampled answers under FROZEN_KV_MTP follow the target's own distribution; and distributions a little off are told apart.

The CPU engine verifies sampled requests by sampling along the draft (``sglang_gemma4/cpu/verify.py``), with SGLang's own preparation of
temperature, top-k and top-p before it; stock verifies them greedily on a CPU. All requests of a group start together and the engine's seed
is fixed, so a run draws what the last one drew, and the p-value below which a test fails is not met by chance.
"""

from functools import cache
from typing import Any

import pytest

from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.mtp_cases import MODEL, MTP
from tests.harness.oracles import exact_sampling
from tests.harness.oracles.reference import CHECKPOINTS, load, text_prompts

P_VALUE = 1e-4
FEW, LONG = 4, 24
"""Tokens of an answer."""
JOINT = {"temperature": 1.7}
MIXED: dict[str, dict[str, float]] = {
    "hot": {"temperature": 1.5},
    "top-p": {"temperature": 1.6, "top_p": 0.9},
    "top-k": {"temperature": 2.0, "top_k": 6},
    "top-k and top-p": {"temperature": 3.0, "top_k": 8, "top_p": 0.6},
    "min-p": {"temperature": 2.0, "min_p": 0.15},
}
MANY, SOME = 6700, 256
DRAWS = 20_000
"""Tokens that verify has drawn, of whole answers and of those under top-p; the first of each answer comes from its prefill."""
TIMES = {name: 872 if name == "top-p" else SOME for name in MIXED}


def drawn(name: str, times: int, tokens: int, prompt: list[int], sampling: dict[str, float]) -> Group:
    """``times`` answers of so many tokens."""
    given = {**sampling, "max_new_tokens": tokens, "ignore_eos": True}
    return Group([prompt], [given], client="timeline:draw", extra={"times": times, "rids": [name]})


@cache
def prompts() -> list[list[int]]:
    """One after which many short answers are likely, then one for each of ``MIXED``."""
    return [text_prompts(MODEL, [42])[0], *text_prompts(MODEL, [24, 31, 40, 18, 27, 22])[1:]]


@pytest.fixture(scope="module")
def answers(nursery: Nursery) -> dict[str, Output]:
    groups = {"joint": drawn(f"gate{MANY}.joint", MANY, FEW, prompts()[0], JOINT)}
    groups["colder"] = drawn(f"gate{SOME * 4}.colder", SOME * 4, FEW, prompts()[0], {"temperature": 0.8 * JOINT["temperature"]})
    groups["greedy"] = drawn("greedy", SOME * 4, FEW, prompts()[0], JOINT)
    for number, (name, sampling) in enumerate(MIXED.items(), 1):
        groups[name] = drawn(f"gate{TIMES[name]}.m{number}", TIMES[name], LONG, prompts()[number], sampling)
    options: dict[str, Any] = {"max_total_tokens": 32768, "max_running_requests": 256, "chunked_prefill_size": 4096, **MTP}
    env = {"TEST_INSTRUMENTS": "mtp_trace:watch"}
    found = nursery.run(CHECKPOINTS / MODEL, list(groups.values()), env=env, time_limit=300, **options)
    return {name: outputs[0] for name, outputs in zip(groups, found, strict=True)}


@pytest.fixture(scope="module")
def model() -> Any:
    return load(MODEL)


def draws(answers: dict[str, Output], name: str) -> list[list[int]]:
    found: list[list[int]] = answers[name].meta_info["draws"]
    return found


def test_joint_distribution_of_the_first_tokens(answers: dict[str, Output], model: Any) -> None:
    found = draws(answers, "joint")
    assert len(found) * (FEW - 1) >= DRAWS
    assert answers["joint"].meta_info["verify_steps"] < 0.9 * MANY * (FEW - 1), "drafts are accepted"
    assert exact_sampling.joint_p_value(model, prompts()[0], found, JOINT) > P_VALUE


@pytest.mark.parametrize("wrong", ["colder", "greedy"])
def test_wrong_distributions_are_seen(wrong: str, answers: dict[str, Output], model: Any) -> None:
    """A sixth of the draws is enough: a temperature a fifth too low, and greedy verification as on stock's CPU."""
    found = draws(answers, wrong)
    assert exact_sampling.joint_p_value(model, prompts()[0], found, JOINT) < P_VALUE
    assert exact_sampling.uniform_p_value(exact_sampling.transform(model, prompts()[0], found, JOINT, skip=1)) < P_VALUE


@pytest.mark.parametrize("name", list(MIXED))
def test_every_token_given_those_before_it(name: str, answers: dict[str, Output], model: Any) -> None:
    prompt = prompts()[1 + list(MIXED).index(name)]
    found = draws(answers, name)
    steps, drafted = answers[name].meta_info["verify_steps"], TIMES[name] * (LONG - 1)
    assert 0.3 * drafted < steps < 0.9 * drafted, "drafts are accepted (0.25 if all were) and refused"
    values = exact_sampling.transform(model, prompt, found, MIXED[name], skip=1)
    assert len(values) == drafted >= (DRAWS if name == "top-p" else 0)
    assert exact_sampling.uniform_p_value(values) > P_VALUE
