"""The same checks where the backend is trtllm_mha."""

from functools import partial

from sglang_gemma4 import uses
from sglang_gemma4.patches.bounds_traps import ALLOCATIONS, BATCH, DRAFT, RUNNER, STATE, remember_batch, trap_draft, trap_runner, trap_state
from sglang_gemma4.patching import Hook, Patch

# Functions of its own where the other patch has hooks too: each is looked for where it was put.
ONLY = {"patch": "trtllm_mha_traps", "only": "TRTLLMHAAttnBackend"}

PATCH = Patch(
    switch="SGLANG_TRTLLM_MHA_DEBUG",
    why="As bounds_traps, for servers that run trtllm_mha and, beside it, backends that are not to be slowed down.",
    evidence="kernels/ops/attention/trtllm_mha_page_table.py (the eager builder never clamps to the table's width)",
    remove_when="SGLang checks page tables and sliding mappings itself.",
    uses=(uses.trtllm_mha,),
    hooks=(
        Hook(RUNNER[0], "after", partial(trap_runner, **ONLY), RUNNER[1]),
        Hook(DRAFT[0], "after", partial(trap_draft, **ONLY), DRAFT[1]),
        Hook(STATE[0], "after", partial(trap_state, **ONLY), STATE[1]),
        Hook(BATCH[0], "after", partial(remember_batch), BATCH[1]),
        *(Hook(target, "after", partial(function, patch=ONLY["patch"]), fingerprint) for target, function, fingerprint in ALLOCATIONS),
    ),
)
