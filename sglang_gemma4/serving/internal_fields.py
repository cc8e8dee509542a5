"""Fields that SGLang sets itself, and that a client of /generate may not set."""

from typing import Any

ROUTED = "SGLang sets it between its own processes"
FIELDS = {
    "lora_id": "SGLang sets it from lora_path",
    "http_worker_ipc": ROUTED,
    "positional_embed_overrides": "only a call in the server's process can hold its tensors",
    "need_wait_for_mm_inputs": ROUTED,
    "num_items_assigned": ROUTED,
    "encoder_urls": ROUTED,
    "multi_item_delimiter_indices": "/v1/score sets it",
    "token_indices_to_pool": "/v1/score sets it",
    "external_trace_header": "send the trace in the request's headers",
    "received_time": "SGLang sets it as the request arrives",
}
"""The fields, each with who sets it or what to do instead."""


def refusal(request: Any) -> str | None:
    """Why a request that came over HTTP is refused, or None."""
    for name, who in FIELDS.items():
        value = getattr(request, name, None)
        if value is not None:
            return f"{name}: is no field of clients ({who}); leave it out"
    return None
