"""A session's next turn computes the KV that its last token lacks; idle sessions give memory to others."""

from sglang_gemma4.patching import Hook, Patch

OURS = "sglang_gemma4.memory.session_slots"

PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="Under MTP a turn counts its last token as cached, whose KV no step wrote, or goes on from tokens past a stop. A refused turn ends "
    "the mark of the running one, and a third shares its KV. Retracted turns and idle sessions keep memory that others wait for, for ever.",
    evidence="srt/session/streaming_session.py:187, 150, 84 · session_controller.py:184 · crash_repro/session_turns.py",
    remove_when="try_cache_finished_req keeps at most finished_len - 1 tokens of an answer, and nothing of a retracted turn.",
    hooks=(
        Hook("sglang.srt.session.streaming_session.StreamingSession.try_cache_finished_req", "around", f"{OURS}:keep", "9b66ca852741"),
        Hook("sglang.srt.session.session_controller.Session.create_req", "around", f"{OURS}:create", "3a9cf715ffb3"),
    ),
)
