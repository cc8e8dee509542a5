"""A request whose prefill server does not answer says so; stock says "Aborted by AbortReq"."""

from sglang_gemma4.patching import Hook, Patch

QUEUE = "sglang.srt.disaggregation.decode.DecodePreallocQueue"

PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="A decode server gives a request up after 15 tries to reach its prefill server, and tells the client 'Aborted by AbortReq'.",
    evidence="srt/disaggregation/decode.py:1217 · common/conn.py:2960 · tests/unit/test_lost_prefill.py",
    remove_when="_ensure_prefill_info records its error_msg as the requests' failure.",
    hooks=(Hook(f"{QUEUE}._ensure_prefill_info", "after", "sglang_gemma4.disaggregation.lost_prefill:name_it", "1f7463508300"),),
)
