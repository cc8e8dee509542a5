"""Strict clients of OpenAI and Anthropic read every answer and error; what is asked for is served, or a 400 with its name."""

from sglang_gemma4.patching import Hook, Patch

OPENAI = "sglang.srt.entrypoints.openai"
MESSAGES = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
OURS = "sglang_gemma4.serving.protocols"

PATCH = Patch(
    switch="SGLANG_GEMMA4_REQUEST_CHECKS",
    why="Stock's metadata.weight_versions is a list, which strict clients reject; max_output_tokens 16 gives 14; a schema beside a call "
    "that must come is a 400. /v1/messages answers a thread's next turn without the thread, names no stop sequence, signs no thought, and "
    "gives errors of whole calls types of its own and those of streams status 200, as /v1/responses does.",
    evidence="srt/entrypoints/openai/serving_chat.py:3049 · protocol.py:1245, 2159, 2211 · serving_responses.py:2990 · "
    "anthropic/serving.py:60, 980, 1215-1240 · "
    "crash_repro/client_protocols.py",
    remove_when="The clients' own packages read all of SGLang's answers in their strict modes.",
    hooks=(
        Hook(f"{OPENAI}.serving_chat.OpenAIServingChat._build_chat_response", "after", f"{OURS}.openai:texts_only", "5ce2f980064b"),
        Hook(
            f"{OPENAI}.serving_completions.OpenAIServingCompletion._build_completion_response",
            "after",
            f"{OURS}.openai:texts_only",
            "9af59ebbd4bf",
        ),
        Hook(f"{OPENAI}.serving_chat.OpenAIServingChat._process_messages", "before", f"{OURS}.openai:drop_schema", "80c3dd483728"),
        Hook(f"{OPENAI}.protocol.ResponsesRequest.to_sampling_params", "around", f"{OURS}.openai:exactly", "499a345c9b80"),
        Hook(f"{OPENAI}.serving_responses.OpenAIServingResponses.create_responses", "around", f"{OURS}.responses:judged", "e489540af6f9"),
        Hook(f"{MESSAGES}.handle_messages", "around", f"{OURS}.anthropic:judged", "71ae50286b66"),
        Hook(f"{MESSAGES}.handle_count_tokens", "around", f"{OURS}.anthropic:judged", "6b32db4f50f5"),
        Hook(f"{MESSAGES}._error_response", "around", f"{OURS}.anthropic:typed", "5a3a28559b2b"),
        Hook(f"{MESSAGES}._convert_response", "after", f"{OURS}.anthropic:complete", "219796f1bc88"),
        Hook(f"{MESSAGES}._handle_streaming", "around", f"{OURS}.anthropic:streamed", "d0112e3df014"),
    ),
)
