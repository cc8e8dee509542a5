"""Media of any message are shown or refused, a text that names a marker is text, and base64 may be written as elsewhere."""

from sglang_gemma4.patching import Hook, Patch

OPENAI = "sglang.srt.entrypoints.openai"
CHAT = f"{OPENAI}.serving_chat.OpenAIServingChat"
ANTHROPIC = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
PROCESSORS = "sglang.srt.multimodal.processors"
SHOWN = "sglang_gemma4.serving.media.shown"
SENT = "sglang_gemma4.serving.media.sent"

PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="Stock drops media that the chat template does not show, with status 200. A text that names <|image|> is read as a place "
    "for one and fails its conversation for good. A sound of 10 ms is refused as if its place were missing; one over 30 s is more than the "
    "model was made for. Base64 with line breaks, URL-safe or without padding fails.",
    evidence="srt/entrypoints/openai/serving_chat.py:2011 · serving_responses.py:1525 (_flatten_tool_output) · "
    "srt/entrypoints/anthropic/serving.py:224 · srt/multimodal/processors/base_processor.py:1457 · crash_repro/dropped_media.py",
    remove_when="SGLang compares media with the rendered prompt and keeps markers in texts apart from the template's.",
    hooks=(
        Hook(f"{CHAT}.__init__", "after", f"{SHOWN}:mark", "51e24292b11d"),
        Hook(f"{CHAT}._process_messages", "before", f"{SHOWN}:judge_ids", "80c3dd483728"),
        Hook(f"{CHAT}._apply_jinja_template", "around", f"{SHOWN}:apply_template", "f81fc664b9e6"),
        Hook(f"{CHAT}._render_and_encode_chat_template", "around", f"{SHOWN}:render", "34e3ac09cd3d"),
        Hook(f"{CHAT}._append_assistant_prefix_to_prompt_ids", "around", f"{SHOWN}:append_prefix", "d8a426d40675"),
        Hook(f"{CHAT}._engine_prompt", "after", f"{SHOWN}:engine_prompt", "e09c7d36a443"),
        Hook(f"{OPENAI}.serving_responses.OpenAIServingResponses._flatten_tool_output", "around", f"{SHOWN}:tool_output", "14350270d520"),
        Hook(f"{ANTHROPIC}._convert_to_chat_completion_request", "before", f"{SHOWN}:judge_blocks", "a3d027cb297a"),
        Hook(f"{PROCESSORS}.gemma4.Gemma4SGLangProcessor.process_mm_data", "around", f"{SHOWN}:process", "c9319d6bf9b8"),
        Hook(f"{PROCESSORS}.gemma4.Gemma4SGLangProcessor.process_mm_data_async", "around", f"{SENT}:process", "6e061e74bf0a"),
        Hook(
            f"{PROCESSORS}.base_processor.BaseMultimodalProcessor.process_and_combine_mm_data_async",
            "around",
            f"{SENT}:judge_loaded",
            "c99f0176c34f",
        ),
        *(
            Hook(f"sglang.srt.utils.common.{name}", "around", f"{SENT}:load", declared)
            for name, declared in (("load_image", "eb18e23c5715"), ("load_video", "8b77a610a2bb"), ("load_audio", "a6f425c25d8f"))
        ),
    ),
)
