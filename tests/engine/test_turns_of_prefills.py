"""E2B's running requests get a decode step between two prefills, and the tokens are those of SGLang's order."""

import re
from typing import Any

from sglang_gemma4.patching import switches
from tests.harness.engine_fork import Nursery, Output
from tests.harness.inputs import mtp_cases
from tests.harness.inputs.mtp_cases import MTP, greedy, timed
from tests.harness.oracles.reference import CHECKPOINTS, text_prompts

ENGINE = {**mtp_cases.ENGINE, **MTP, "enable_mixed_chunk": False, "max_total_tokens": 1500, "decode_log_interval": 1}


def serve(nursery: Nursery, policy: str) -> list[Output]:
    """Eight prompts of two chunks each that come together, while a long answer is decoded."""
    texts = text_prompts(mtp_cases.MODEL, [20, *[90 + number for number in range(7)]])
    asked: list[dict[str, Any]] = [{"rid": "long"}, *({"rid": f"gate7.late-{number}", "after": ["long", 6]} for number in range(7))]
    group = timed(texts, [greedy(120), *[greedy(8)] * 7], asked)
    return nursery.run(CHECKPOINTS / mtp_cases.MODEL, [group], env={switches.BESIDE_GAP: policy}, time_limit=300.0, **ENGINE)[0]


def test_no_request_waits_for_two_prefills(nursery: Nursery) -> None:
    turns, first = serve(nursery, "balanced"), serve(nursery, "throughput")
    assert [output.token_ids for output in turns] == [output.token_ids for output in first]
    order, stock = ("".join(kind[0] for kind in re.findall(r"(Prefill|Decode) batch", found[0].log)) for found in (turns, first))
    print(order, stock)
    assert "PP" in stock[1:], "SGLang prefills as long as prompts wait"
    assert stock.count("P") >= 10
    assert order.count("P") >= 10
    assert "PP" not in order[order.index("D") :]
    assert "after a prefill running requests get a decode step" in turns[0].log
