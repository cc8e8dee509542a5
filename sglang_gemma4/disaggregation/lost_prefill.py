"""Failure reason of a decode server's requests whose prefill server does not answer."""

from collections.abc import Mapping, Sequence
from typing import Any

STOCK = "Aborted by AbortReq."


def name_it(found: tuple[Mapping[str, Any], Sequence[Any]], queue: Any, asked: Mapping[str, Sequence[Any]]) -> None:
    """After ``DecodePreallocQueue._ensure_prefill_info``: record which address did not answer for requests that were given up.

    Args:
        found: ready requests by address, and the requests that are tried again.
        asked: all requests, by the bootstrap address of their prefill server.
    """
    ready, remaining = found
    waits, said = {id(request) for request in remaining}, getattr(queue.kv_manager, "failure_records", {})
    for address, requests in asked.items():
        for request in requests:
            has_reason = said.get(request.req.bootstrap_room) not in (None, STOCK)  # peers.refuse_servers names what does not fit
            if address not in ready and id(request) not in waits and request.kv_receiver is not None and not has_reason:
                queue.kv_manager.record_failure(
                    request.req.bootstrap_room,
                    f"the prefill server of this request does not answer at its bootstrap address {address}; start it or ask another",
                )
