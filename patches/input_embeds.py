"""Prompts given as embeddings are served, beside others, in the model's own type; stock's scheduler ends."""

from sglang_gemma4.patching import Hook, Patch

OURS = "sglang_gemma4.models.given_embeddings"

PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="With --disable-radix-cache, where SGLang's documentation offers input_embeds, the first such request ends the scheduler: the "
    "forward is given ids and embeddings, and refuses both. In float32 the embeddings have another type, and beside a request with ids "
    "there are fewer rows than tokens.",
    evidence="srt/models/gemma4_mm.py:655 · models/gemma4_causal.py:1035 · model_executor/model_runner.py:1772 (bfloat16) · "
    "managers/schedule_batch.py:2935 · crash_repro/input_embeds.py",
    remove_when="SGLang's Gemma 4 takes input_embeds in batches of both kinds.",
    hooks=(
        Hook("sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend", "after", f"{OURS}:keep_rows", "fa20f429824a"),
        Hook("sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs", "around", f"{OURS}:set_aside", "59f4141fb13c"),
        Hook("sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration.forward", "around", f"{OURS}:write_over", "072bd23683f7"),
        Hook("sglang.srt.models.gemma4_causal.Gemma4ForCausalLM.forward", "around", f"{OURS}:write_over", "1d0366f7fa47"),
    ),
)
