"""What requests are told whose prefill server does not answer."""

from types import SimpleNamespace
from typing import Any

from sglang_gemma4.disaggregation import lost_prefill


def request(room: int, receiver: Any = True) -> Any:
    return SimpleNamespace(kv_receiver=receiver, req=SimpleNamespace(bootstrap_room=room))


def test_only_requests_that_were_given_up_are_told_so() -> None:
    said: dict[int, str] = {}
    queue = SimpleNamespace(kv_manager=SimpleNamespace(record_failure=said.__setitem__))
    up, waits, lost, cleaned, unlike = request(1), request(2), request(3), request(4, receiver=None), request(5)
    queue.kv_manager.failure_records = {3: lost_prefill.STOCK, 5: "prefill server down:3 refused: pages of 16 tokens"}
    lost_prefill.name_it(({"up:1": [up]}, [waits]), queue, {"up:1": [up], "slow:2": [waits], "down:3": [lost, cleaned, unlike]})
    assert list(said) == [3]
    assert "does not answer at its bootstrap address down:3" in said[3]
