"""Prefill and decode on servers of their own."""

from sglang_gemma4.disaggregation import transfer_checks
from sglang_gemma4.patching import Part, Seam, uses

WIDTH = "sglang.srt.speculative.eagle_utils.get_draft_recurrent_hidden_state_spec_from_config"
QUEUE = "sglang.srt.disaggregation.decode.DecodePreallocQueue"
SGLANG = "sglang.srt.disaggregation"

PARTS = (
    Part(
        name="pd_draft",
        does="MTP works behind a prefill server (--disaggregation-mode); stock's servers crash at the first request.",
        switch="SGLANG_GEMMA4_FROZEN_VIEWS",
        why="Stock sizes the transferred hidden state by the assistant, and registers the draft's 64 slots under the target's pages. It "
        "also builds EAGLE's draft input. Neither server of a pair can run MTP.",
        evidence="srt/speculative/eagle_utils.py:279 · managers/scheduler.py:1534 · speculative/eagle_disaggregation.py:124 · "
        "frozen_kv_mtp_worker_v2.py:465",
        remove_when="tests/engine/test_mtp_disaggregated.py passes with SGLANG_GEMMA4_WITHOUT=pd_draft.",
        uses=(uses.mtp, uses.disaggregation),
    ),
    Part(
        name="hetero_tp",
        does="Prefill and decode servers (--disaggregation-mode) may have different --tp-size.",
        switch="SGLANG_GEMMA4_MODEL_FIXES",
        why="Stock applies the full layers' number of KV heads to the sliding layers. Of 12 unequal pairs of sizes in 1, 2, 4, 8 it "
        "serves only 2 for 26B-A4B. NIXL also counts no group of heads if KV heads are fewer than prefill ranks. It keeps one source for "
        "all decode sizes.",
        evidence="srt/disaggregation/prefill.py:336 · common/conn.py:1751 · nixl/conn.py:1302, 1328 · mooncake/conn.py:2157",
        remove_when="tests/engine/test_hetero_tp.py passes with SGLANG_GEMMA4_WITHOUT=hetero_tp.",
        uses=(uses.disaggregation,),
    ),
    Part(
        name="lost_prefill",
        does='If a request\'s prefill server does not answer, the error says so; stock says "Aborted by AbortReq".',
        switch="SGLANG_GEMMA4_REQUEST_CHECKS",
        why="After 15 tries to reach the prefill server, a decode server gives the request up. The client then reads only 'Aborted by "
        "AbortReq'.",
        evidence="srt/disaggregation/decode.py:1217 · common/conn.py:2960 · tests/unit/test_lost_prefill.py",
        remove_when="_ensure_prefill_info records its error_msg as the requests' failure.",
    ),
)

SEAMS = (
    Seam(WIDTH, "around", transfer_checks.recurrent_hidden, "48156b3f742c", parts=("pd_draft",)),
    Seam(
        "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.__init__",
        "before",
        transfer_checks.without_draft_pool,
        "657c3d190268",
        parts=("pd_draft",),
    ),
    Seam(
        "sglang.srt.disaggregation.decode.DecodePreallocQueue.__init__",
        "before",
        transfer_checks.without_draft_pool,
        "62394cb3ba75",
        parts=("pd_draft",),
    ),
    Seam(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.build_disagg_draft_input",
        "after",
        "sglang_gemma4.speculative.disaggregated:frozen_input",
        "9d1bebb772bb",
        parts=("pd_draft",),
    ),
    Seam(
        f"{SGLANG}.utils.setup_state_kv_args",
        "after",
        "sglang_gemma4.disaggregation.peers:keep_heads",
        "51324cc29389",
        parts=("hetero_tp",),
    ),
    Seam(
        f"{SGLANG}.decode.DecodePreallocQueue._ensure_prefill_info",
        "around",
        "sglang_gemma4.disaggregation.peers:refuse_servers",
        "1f7463508300",
        parts=("hetero_tp",),
    ),
    Seam(f"{SGLANG}.utils.get_kv_class", "before", transfer_checks.hook_manager, "b70ba18e22ea", parts=("hetero_tp",)),
    Seam(
        f"{QUEUE}._ensure_prefill_info",
        "after",
        "sglang_gemma4.disaggregation.lost_prefill:name_it",
        "1f7463508300",
        parts=("lost_prefill",),
    ),
)
