"""How a server starts: its flags are judged, kernels are built, sizes are chosen."""

from sglang_gemma4.diagnostics import start_checks
from sglang_gemma4.patching import Part, Seam, switches, uses
from sglang_gemma4.serving import compiling, starting

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"

PARTS = (
    Part(
        name="compile_ahead",
        does="Kernels not on disk compile while weights load: Triton's by a list, FlashAttention-4's and CUDA's by the config.",
        switch="SGLANG_GEMMA4_COMPILE_AHEAD",
        why="Stock compiles kernels that are not on disk one after another during graph capture, while the other CPU cores idle.",
        evidence="runs/2026-11-24-26b-start (a first start of 26B-A4B: Triton compiled for 56 s, with a list for 10 s) · "
        "runs/2026-11-23-e2b-images-ttft (61.8 of 73.3 s of the prefill graphs went to compiling) · tests/unit/test_compile_ahead.py, "
        "test_shipped_kernels.py, test_flash_ahead.py, test_cuda_modules.py (callers find the kernels that were compiled ahead) · "
        "runs/2026-11-25-26b-h100-step-kernels (four CUDA modules, built one after another, took 52 s of a first start; the gain is not "
        "measured)",
        remove_when="SGLang compiles Triton's kernels in parallel before it captures.",
        uses=(uses.kernels,),
    ),
    Part(
        name="preflight",
        does="Assistants, draft lengths, backends and checkpoints that cannot work are refused before weights are loaded.",
        switch="SGLANG_GEMMA4_PREFLIGHT",
        why="Stock fails with a shape error after it has loaded the weights, or with a page of traceback.",
        evidence="srt/arg_groups/model_hook.py:646 (assert) · srt/models/gemma4_mtp.py (no geometry check) · "
        "arg_groups/speculative_hook.py:990 (no check of MTP's lengths and backends) · layers/attention/triton_backend.py:1706 (fp8 "
        "keys)",
        remove_when="SGLang checks assistant, lengths and backends before loading.",
    ),
    Part(
        name="mtp_defaults",
        does="A draft path alone selects NEXTN, 3 steps, topk 1, 4 draft tokens, unquantised; `auto` finds the -assistant.",
        switch="SGLANG_GEMMA4_MTP_DEFAULTS",
        why="Stock requires a flag each for algorithm, steps, candidates and draft tokens, and fails late if one is missing.",
        evidence="srt/arg_groups/speculative_hook.py:985 (_handle_frozen_kv_mtp fills in none of them)",
        remove_when="SGLang chooses them for FROZEN_KV_MTP as it does for EAGLE.",
        uses=(uses.draft_given,),
    ),
    Part(
        name="force_eagle",
        does="NEXTN and EAGLE stay EAGLE if the draft names a Gemma 4 assistant but has its own KV.",
        switch=switches.FORCE_EAGLE,
        why="SGLang promotes NEXTN and EAGLE to FROZEN_KV_MTP by a name in the draft's config.json. A draft that writes KV needs EAGLE.",
        evidence="srt/arg_groups/speculative_hook.py:97-115 (any of the names) · srt/models/registry.py:83 (the first known name is "
        "loaded)",
        remove_when="SGLang has a flag that keeps EAGLE.",
        uses=(uses.draft_given,),
    ),
    Part(
        name="graph_sizes",
        does="Decode and verify steps of MoE models get CUDA graphs at the batch sizes where padding would be costly.",
        switch="SGLANG_GEMMA4_GRAPH_SIZES",
        why="SGLang pads a batch between two captured sizes, and padded rows read experts too. Its sizes are far apart where padding "
        "costs most. Without speculation SGLang computes a batch of 5 as 8, 9 as 12, and 17 as 24. With speculation it computes 33 as 40.",
        evidence="srt/arg_groups/cuda_graph_hook.py:500 · srt/model_executor/forward_batch_info.py:2271 (padded rows skip the experts "
        "only under expert or data parallelism) · H200, every batch from 1 to 80, runs/2026-11-27-26b-h200-step-curve-plain: SGLang's 14 "
        "sizes take up to 31 % longer than the fastest found (at 5; 2.2 % on average), ours up to 1.7 % longer (0.1 % on average) · ours "
        "cost 4.8 s of a start and 0.10 GB · with MTP the difference is 0.3 % (runs/2026-11-27-26b-h200-step-curve), so with MTP the "
        "patch is off unless asked for",
        remove_when="SGLang leaves padded rows out of the experts, or chooses the captured sizes by the cost of padding.",
        uses=(uses.moe, uses.decode_graphs, uses.padded_graphs),
    ),
    Part(
        name="parser_defaults",
        does="Gemma 4's parsers of thoughts and tool calls are the default, with any grammar backend.",
        switch="SGLANG_GEMMA4_ANSWER_PARSER",
        why="Without --tool-call-parser and --reasoning-parser, stock returns a Gemma 4 answer's calls and thoughts as raw text. With a "
        "reasoning parser, --grammar-backend llguidance and outlines answer every JSON schema and regex with status 400.",
        evidence="srt/parser/template_detection.py:900 (another architecture's defaults) · crash_repro/tool_parser_default.py · "
        "srt/constrained/reasoner_grammar_backend.py:463 (allocate_vocab_mask) · crash_repro/grammar_backends.py",
        remove_when="SGLang chooses Gemma 4's parsers itself, and the grammars of all its backends work after a thought.",
    ),
)

SEAMS = (
    Seam(f"{SCHEDULER}.init_model_worker", "before", compiling.begin, "ba949f6d648a", parts=("compile_ahead",), pins="signature"),
    Seam(f"{SCHEDULER}.init_all_attention_backends", "before", compiling.wait, "24d56f35c84a", parts=("compile_ahead",), pins="signature"),
    Seam(f"{SCHEDULER}.get_init_info", "after", compiling.keep, "1bfe7c8f9650", parts=("compile_ahead",), pins="signature"),
    Seam("sglang.srt.server_args.ServerArgs.resolve_once", "around", start_checks.check_arguments, "7822e7d5cefd", parts=("preflight",)),
    Seam(
        "sglang.srt.arg_groups.speculative_hook._handle_frozen_kv_mtp",
        "after",
        start_checks.check_mtp,
        "7b0aa090be25",
        parts=("preflight",),
    ),
    Seam(
        "sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments",
        "after",
        start_checks.check_model,
        "1c321ef6fec8",
        parts=("preflight",),
    ),
    Seam("sglang.srt.server_args.ServerArgs.resolve_once", "before", starting.fill_in, "7822e7d5cefd", parts=("mtp_defaults",)),
    Seam(
        "sglang.srt.arg_groups.speculative_hook._resolve_speculative_algorithm_alias",
        "around",
        starting.keep_eagle,
        "32a3d47bbf75",
        parts=("force_eagle",),
    ),
    Seam(
        "sglang.srt.arg_groups.cuda_graph_hook.generate_decode_cuda_graph_batch_sizes",
        "around",
        starting.choose,
        "5df5fbe8d978",
        parts=("graph_sizes",),
    ),
    Seam(
        "sglang.srt.parser.template_detection._architecture_parser_defaults",
        "after",
        starting.parser_defaults_choose,
        "369df0ad2203",
        parts=("parser_defaults",),
    ),
    Seam(
        "sglang.srt.constrained.reasoner_grammar_backend.ReasonerGrammarBackend.__init__",
        "after",
        starting.without_masks,
        "6996b9d6ed4c",
        parts=("parser_defaults",),
    ),
)
