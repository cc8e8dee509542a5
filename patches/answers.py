"""Prompts as a chat's template has them, and answers: thoughts, calls, constraints."""

from sglang_gemma4.patching import Entry, Part, Seam, uses
from sglang_gemma4.serving import answer_parser, call_constraints, chat_prompts, json_blanks

MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
PARSER = "sglang.srt.parser.reasoning_parser.ReasoningParser"
MESSAGES = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
CALLS = "sglang.srt.function_call.function_call_parser.FunctionCallParser"
RESPONSES = "sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses"
STREAM = "sglang.srt.managers.scheduler_components.output_streamer._GenerationStreamAccumulator"
BATCH = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
XGRAMMAR = "sglang.srt.constrained.xgrammar_backend"

PARTS = (
    Part(
        name="one_bos",
        does="Raw texts of /v1/completions and /generate begin with one <bos>; chats and token ids are unchanged.",
        switch="SGLANG_GEMMA4_CONFIGS",
        why="Released Gemma 4 tokenizers add no <bos>. Stock restores it for text-only models, but not for tokenizers that come with a "
        "processor: these score raw texts without it. A tokenizer that adds <bos> gives a chat two, because the chat's text is rendered "
        "and then tokenised again.",
        evidence="srt/utils/hf_transformers/tokenizer.py:317-423 (get_tokenizer only) · processor.py:398-432 · "
        "managers/tokenizer_manager.py:1068 · crash_repro/raw_bos.py",
        remove_when="SGLang's get_processor restores add_bos_token, and texts that begin with <bos> get no second one.",
    ),
    Part(
        name="answer_parser",
        does="One state machine parses thoughts and tool calls: in linear time, with equal results streamed or not.",
        switch="SGLANG_GEMMA4_ANSWER_PARSER",
        why="On some arguments stock's parser never ends. It ends a call at <tool_call|> inside a string, and turns null into a string. "
        "It drops text after a call and calls inside thoughts. It leaks a second thought into the content, takes an answer without a "
        "thought for a thought, and numbers streamed calls by tool. A missing or doubled delimiter swallows the rest, calls in round "
        "brackets stay text, and a streamed /v1/messages drops arguments. Thoughts of a text-only checkpoint lose their markers before "
        "they are parsed. reasoning_tokens counts the whole of an answer without a thought, and tokens that a stop cut off.",
        evidence="srt/function_call/gemma4_detector.py:51 (the loop), :93, :259, :380, :411 · srt/parser/reasoning_parser.py:154, "
        "224, 1320 · srt/entrypoints/anthropic/serving.py:1276 · srt/managers/schedule_batch.py:2240 · "
        "crash_repro/tool_parser_hang.py, tool_answers.py, tool_call_index.py, thinking_answers.py, thinking_text_only.py, "
        "endpoint_answers.py, reasoning_tokens.py · runs/2026-11-24-answer-parser",
        remove_when="SGLang's gemma4 parsers pass tests/unit/test_answer.py.",
        uses=(uses.gemma4_parser,),
    ),
    Part(
        name="tool_grammar",
        does="Forced tool calls, and those of strict tools, are constrained in Gemma 4's own syntax.",
        switch="SGLANG_GEMMA4_TOOL_GRAMMAR",
        why="With tool_choice required or a named call, stock makes the model write a JSON array, which the model was not trained to "
        "write. It constrains nothing if a thinking model does not think. It does not enforce strict tools at all.",
        evidence="srt/function_call/gemma4_detector.py:441 (supports_structural_tag) · srt/function_call/function_call_parser.py:394 "
        "(json_schema), 419 (errors become None) · srt/constrained/reasoner_grammar_backend.py:264 · crash_repro/tool_choice_json.py",
        remove_when="SGLang's gemma4 detector has a structural tag of its own (xgrammar 0.2.7: builtin_structural_tag.py:2302 has none).",
        uses=(uses.tool_grammars,),
    ),
    Part(
        name="json_blanks",
        does="Constrained answers end: runs of blanks in JSON are limited, and a string cannot contain a special token.",
        switch="SGLANG_GEMMA4_TOOL_GRAMMAR",
        why="After a key or a value, stock's JSON grammars accept any number of blanks, and Gemma 4 often writes blanks until "
        "max_tokens. --constrained-json-max-whitespace-cnt does not cover structural tags, any JSON or llguidance, and makes masks slow. "
        "In strings xgrammar accepts special tokens by their characters. Texts then lose them, and a call continues after its end marker.",
        evidence="srt/arg_groups/fields/serving.py:293 (None: unbounded) · srt/constrained/xgrammar_backend.py:386, 421 · "
        "llguidance_backend.py:299 · crash_repro/endless_answers.py",
        remove_when="SGLang limits blanks in JSON by default, in each of its grammars.",
    ),
)

SEAMS = (
    Seam(f"{MANAGER}.init_tokenizer_and_processor", "after", chat_prompts.begin_texts, "67e8365eb770", parts=("one_bos",)),
    Seam(f"{CHAT}._can_reuse_text_only_prompt_ids", "after", chat_prompts.reuse_ids, "a4b57b078709", parts=("one_bos",)),
    Entry(
        f"{CALLS}.ToolCallParserEnum", "gemma4", "sglang_gemma4.serving.answer_parsers:ToolCalls", "b2781a273c1f", parts=("answer_parser",)
    ),
    Entry(f"{PARSER}.DetectorMap", "gemma4", "sglang_gemma4.serving.answer_parsers:Thoughts", "f36b30f30245", parts=("answer_parser",)),
    Seam(f"{CALLS}.__init__", "after", answer_parser.know_tools, "e20649aeda8b", parts=("answer_parser",)),
    Seam(f"{CHAT}.__init__", "after", answer_parser.keep_markers, "51e24292b11d", parts=("answer_parser",)),
    Seam(f"{CHAT}._process_messages", "after", answer_parser.remember_open_thought, "80c3dd483728", parts=("answer_parser",)),
    Seam(f"{CHAT}._apply_jinja_template", "before", answer_parser.repair_history, "f81fc664b9e6", parts=("answer_parser",)),
    Seam(f"{CHAT}._generate_stream_content", "around", answer_parser.order_chunks, "33c921681786", parts=("answer_parser",)),
    Seam(f"{CHAT}._process_tool_calls", "around", answer_parser.keep_reason, "d8e6b83bea74", parts=("answer_parser",)),
    Seam(f"{RESPONSES}._make_request", "around", answer_parser.hand_on_prefix, "e464fa5afacc", parts=("answer_parser",)),
    Seam(f"{MESSAGES}._convert_response", "before", answer_parser.close_cut_call, "219796f1bc88", parts=("answer_parser",)),
    Seam(f"{PARSER}.__init__", "after", answer_parser.go_on_with_thought, "0ca76ebd2ed9", parts=("answer_parser",)),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.init_tokenizer",
        "after",
        answer_parser.find_markers,
        "e52b069860a2",
        parts=("answer_parser",),
    ),
    Seam(
        f"{BATCH}._maybe_update_reasoning_tokens",
        "around",
        answer_parser.count_thoughts,
        "7afb725ba992",
        parts=("answer_parser",),
    ),
    Seam(f"{STREAM}.accept", "before", answer_parser.leave_out_the_stop, "a3661a2e6b0b", parts=("answer_parser",)),
    Seam(f"{CALLS}.__init__", "after", call_constraints.remember_tokenizer, "e20649aeda8b", parts=("tool_grammar",)),
    Seam(f"{CALLS}.get_structure_constraint", "around", call_constraints.constrain, "35e1e05f0fce", parts=("tool_grammar",)),
    Seam(f"{CALLS}.owns_tool_format", "around", call_constraints.owns_format, "3dd45c0c0b91", parts=("tool_grammar",)),
    Seam(
        "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._process_messages",
        "after",
        call_constraints.from_first_token,
        "80c3dd483728",
        parts=("tool_grammar",),
    ),
    Seam(
        "sglang.srt.constrained.base_grammar_backend.create_grammar_backend",
        "after",
        json_blanks.choose,
        "b36cf78863ab",
        parts=("json_blanks",),
    ),
    Seam(
        f"{XGRAMMAR}.XGrammarGrammarBackend._from_context",
        "after",
        json_blanks.remember,
        "efb9aed20e51",
        parts=("json_blanks",),
    ),
    Seam(f"{XGRAMMAR}.XGrammarGrammar.fill_vocab_mask", "after", json_blanks.mask_tokens, "7ec9aab0ae64", parts=("json_blanks",)),
    Seam(
        "sglang.srt.constrained.llguidance_backend.GuidanceBackend.dispatch_structural_tag",
        "around",
        json_blanks.guide_tags,
        "dd821a93b979",
        parts=("json_blanks",),
    ),
)
