"""A calibrated fp8 KV cache under MTP: the draft reads what the target wrote with the target's scales."""

from typing import Any

from tests.harness.engine_fork import Group, Nursery, Output
from tests.harness.inputs.mtp_cases import MODEL, MTP, chats, greedy, named, timed
from tests.harness.oracles.reference import CHECKPOINTS

REQUESTS, TOKENS = 6, 28


def test_drafts_are_accepted_more_often_than_without_the_scales(nursery: Nursery) -> None:
    """One engine, the same requests twice: an accept length of 2.84 with the scales, of 2.38 without."""
    options: dict[str, Any] = {**MTP, "kv_cache_dtype": "fp8_e4m3"}
    env = {"TEST_INSTRUMENTS": "calibrated_cache:install"}
    scaled, unscaled = nursery.run(CHECKPOINTS / MODEL, [ask("scaled"), ask("unscaled")], env, **options)
    lengths = accept_length(scaled), accept_length(unscaled)
    print(f"accept length {lengths[0]:.2f}, with its scales dropped {lengths[1]:.2f}")
    assert "dtype: torch.float8_e4m3fn" in scaled[0].log
    assert [one.token_ids for one in scaled] == [one.token_ids for one in unscaled], "what is drafted changes no token"
    assert lengths[0] > 2.75
    assert lengths[1] < 0.9 * lengths[0]


def ask(name: str) -> Group:
    return timed(chats(REQUESTS, 3), [greedy(TOKENS)] * REQUESTS, named(name, REQUESTS))


def accept_length(answers: list[Output]) -> float:
    steps: int = sum(one.meta_info["spec_verify_ct"] for one in answers)
    return sum(len(one.token_ids) - 1 for one in answers) / steps
