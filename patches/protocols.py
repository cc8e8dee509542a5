"""HTTP: OpenAI's, Anthropic's and Ollama's protocols, and their errors."""

from sglang_gemma4.patching import Part, Seam
from sglang_gemma4.serving.protocols import error_answers, routes

OPENAI = "sglang.srt.entrypoints.openai"
MESSAGES = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
SERVER = "sglang.srt.entrypoints.http_server"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"

PARTS = (
    Part(
        name="client_errors",
        does="A malformed request is a 400 that names the cause; long bodies and prompts do not block the event loop.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Stock answers several malformed requests with status 500. They are a response_format that is a text, tools whose parameters "
        "are true, template arguments that stock sets itself, and bodies nested 500 deep. Long schemas, prompts and bodies block the "
        "event loop for seconds.",
        evidence="srt/entrypoints/openai/serving_base.py:148 · serving_chat.py:1171 (check_schema) · "
        "srt/managers/tokenizer_manager.py:1057 (encode on the loop) · crash_repro/client_errors.py",
        remove_when="SGLang answers a client's malformed request with status 400, and tokenises off the event loop.",
    ),
    Part(
        name="ollama_api",
        does="Ollama's endpoints match the chat API: whole streams, counts, tools, thoughts, images, schemas; the rest is a 400.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Stock's Ollama endpoints drop the last step's text of a stream, and answer seed, num_predict -1 and top_k 0 with status "
        "500. They always end with 'stop', give no counts for a stream, and refuse a tool-call message without content. They ignore "
        "format, tools, think and images.",
        evidence="srt/entrypoints/ollama/serving.py:55, 150-158, 267-275 · crash_repro/ollama_answers.py",
        remove_when="SGLang's Ollama endpoints answer through OpenAIServingChat, and refuse by name what they do not serve.",
    ),
    Part(
        name="client_protocols",
        does="Strict OpenAI and Anthropic clients can read every answer and error; each field is served, or named in a 400.",
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="Stock's metadata.weight_versions is a list, which strict clients reject. max_output_tokens 16 gives 14 tokens. A schema "
        "together with a forced tool call is a 400. /v1/messages answers a thread's next turn without the thread, does not name the stop "
        "sequence, and signs no thought. Its errors for whole calls have types of their own; its errors for streams have status 200, as "
        "with /v1/responses.",
        evidence="srt/entrypoints/openai/serving_chat.py:3049 · protocol.py:1245, 2159, 2211 · serving_responses.py:2990 · "
        "anthropic/serving.py:60, 980, 1215-1240 · crash_repro/client_protocols.py",
        remove_when="The clients' own packages can read all of SGLang's answers in their strict modes.",
    ),
)

SEAMS = (
    Seam(
        f"{SERVER}._setup_and_run_http_server",
        "before",
        error_answers.answer_errors,
        "744747695aae",
        parts=("client_errors",),
        pins="signature",
    ),
    Seam(f"{SERVER}.init_multi_tokenizer", "after", error_answers.after_start, "a7d13b1dfc1d", parts=("client_errors",)),
    Seam(
        f"{SERVER}.ORJSONRequest.json",
        "around",
        "sglang_gemma4.serving.http_errors:judged_body",
        "e2c5d0ed98fb",
        parts=("client_errors",),
    ),
    Seam(
        f"{OPENAI}.serving_base.OpenAIServingBase.create_error_response",
        "around",
        "sglang_gemma4.serving.http_errors:error_response",
        "69d7cdfd6df0",
        parts=("client_errors",),
    ),
    Seam(f"{CHAT}._validate_request", "around", error_answers.without_schemas, "8d78750212e0", parts=("client_errors",)),
    Seam(f"{CHAT}._process_messages", "around", error_answers.judged_chat, "80c3dd483728", parts=("client_errors",)),
    Seam(
        f"{CHAT}._convert_to_internal_request",
        "around",
        "sglang_gemma4.serving.client_errors:reading",
        "f30c2af44acf",
        parts=("client_errors",),
    ),
    *(
        Seam(
            f"sglang.srt.managers.io_struct.{name}.normalize_batch_and_arguments",
            "around",
            "sglang_gemma4.serving.client_errors:reading",
            declared,
            parts=("client_errors",),
        )
        for name, declared in (("GenerateReqInput", "747f81a7ac99"), ("EmbeddingReqInput", "2b7c7ff75e3b"))
    ),
    Seam(
        f"{MANAGER}._tokenize_one_request",
        "around",
        "sglang_gemma4.serving.client_errors:reading_async",
        "5f726c05bb27",
        parts=("client_errors",),
    ),
    Seam(
        f"{MANAGER}._batch_tokenize_and_process",
        "around",
        "sglang_gemma4.serving.client_errors:reading_async",
        "3c2594d38461",
        parts=("client_errors",),
    ),
    Seam(f"{MANAGER}._tokenize_texts", "around", "sglang_gemma4.serving.off_loop:tokenized", "9d841c1eefd9", parts=("client_errors",)),
    Seam(
        f"{MANAGER}._send_one_request",
        "before",
        error_answers.note_sent,
        "dd859bf5b5a3",
        parts=("client_errors",),
        pins="signature",
    ),
    Seam(
        f"{MANAGER}._send_batch_request",
        "before",
        error_answers.note_sent,
        "fce9cb587e15",
        parts=("client_errors",),
        pins="signature",
    ),
    Seam(
        f"{OPENAI}.serving_responses.OpenAIServingResponses._make_request",
        "around",
        "sglang_gemma4.serving.off_loop:threaded",
        "e464fa5afacc",
        parts=("client_errors",),
    ),
    *(
        Seam(
            f"{OPENAI}.serving_tokenize.{name}._handle_non_streaming_request",
            "around",
            "sglang_gemma4.serving.off_loop:threaded",
            declared,
            parts=("client_errors",),
        )
        for name, declared in (("OpenAIServingTokenize", "130f2e343475"), ("OpenAIServingDetokenize", "28527ce2f5bc"))
    ),
    Seam(
        f"{MESSAGES}.handle_messages",
        "around",
        "sglang_gemma4.serving.off_loop:messages",
        "71ae50286b66",
        parts=("client_errors",),
    ),
    Seam(
        f"{MESSAGES}.handle_count_tokens",
        "around",
        "sglang_gemma4.serving.off_loop:threaded",
        "6b32db4f50f5",
        parts=("client_errors",),
    ),
    Seam(
        "sglang.srt.entrypoints.ollama.serving.OllamaServing.__init__",
        "after",
        routes.replace_routes,
        "cc588b3ff0ae",
        parts=("ollama_api",),
    ),
    Seam(
        f"{OPENAI}.serving_chat.OpenAIServingChat._build_chat_response",
        "after",
        "sglang_gemma4.serving.protocols.openai:texts_only",
        "5ce2f980064b",
        parts=("client_protocols",),
    ),
    Seam(
        f"{OPENAI}.serving_completions.OpenAIServingCompletion._build_completion_response",
        "after",
        "sglang_gemma4.serving.protocols.openai:texts_only",
        "9af59ebbd4bf",
        parts=("client_protocols",),
    ),
    Seam(
        f"{OPENAI}.serving_chat.OpenAIServingChat._process_messages",
        "before",
        "sglang_gemma4.serving.protocols.openai:drop_schema",
        "80c3dd483728",
        parts=("client_protocols",),
    ),
    Seam(
        f"{OPENAI}.protocol.ResponsesRequest.to_sampling_params",
        "around",
        "sglang_gemma4.serving.protocols.openai:exactly",
        "499a345c9b80",
        parts=("client_protocols",),
    ),
    Seam(
        f"{OPENAI}.serving_responses.OpenAIServingResponses.create_responses",
        "around",
        "sglang_gemma4.serving.protocols.responses:judged",
        "e489540af6f9",
        parts=("client_protocols",),
    ),
    Seam(
        f"{MESSAGES}.handle_messages",
        "around",
        "sglang_gemma4.serving.protocols.anthropic:judged",
        "71ae50286b66",
        parts=("client_protocols",),
    ),
    Seam(
        f"{MESSAGES}.handle_count_tokens",
        "around",
        "sglang_gemma4.serving.protocols.anthropic:judged",
        "6b32db4f50f5",
        parts=("client_protocols",),
    ),
    Seam(
        f"{MESSAGES}._error_response",
        "around",
        "sglang_gemma4.serving.protocols.anthropic:typed",
        "5a3a28559b2b",
        parts=("client_protocols",),
    ),
    Seam(
        f"{MESSAGES}._convert_response",
        "after",
        "sglang_gemma4.serving.protocols.anthropic:complete",
        "219796f1bc88",
        parts=("client_protocols",),
    ),
    Seam(
        f"{MESSAGES}._handle_streaming",
        "around",
        "sglang_gemma4.serving.protocols.anthropic:streamed",
        "d0112e3df014",
        parts=("client_protocols",),
    ),
)
