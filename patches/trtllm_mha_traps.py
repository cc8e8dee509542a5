"""The same checks where the backend is trtllm_mha."""

from sglang_gemma4 import uses
from sglang_gemma4.patches.bounds_traps import hooks_of
from sglang_gemma4.patching import Patch

PATCH = Patch(
    switch="SGLANG_TRTLLM_MHA_DEBUG",
    why="As bounds_traps, for servers that run trtllm_mha and, beside it, backends that are not to be slowed down.",
    evidence="kernels/ops/attention/trtllm_mha_page_table.py (the eager builder never clamps to the table's width)",
    remove_when="SGLang checks page tables and sliding mappings itself.",
    uses=(uses.trtllm_mha,),
    hooks=hooks_of("trtllm_mha_traps", "TRTLLMHAAttnBackend"),
)
