"""Sampled requests are sampled under MTP on a CPU too, as the CUDA kernels do it."""

from sglang_gemma4.patching import Entry, Hook, Patch

EAGLE = "sglang.srt.speculative.eagle_utils"

PATCH = Patch(
    switch="SGLANG_GEMMA4_CPU",
    why="On a CPU SGLang verifies drafts greedily whatever temperature, top-p and top-k say; here sampled requests are sampled, "
    "with the meaning of the CUDA kernels.",
    evidence="speculative/eagle_utils.py:500 · kernels/jit/include/sgl_kernel/speculative/sampling.cuh",
    remove_when="SGLang has sampling-verify kernels for the CPU.",
    hooks=(
        Hook(f"{EAGLE}._verify_uses_greedy", "replace", "sglang_gemma4.cpu.verify:decides_greedily", "aef4e7dc4b27"),
        Entry(f"{EAGLE}.__dict__", "tree_speculative_sampling_target_only", "sglang_gemma4.cpu.verify:verify_sampled", "absent"),
        Entry(f"{EAGLE}.__dict__", "top_k_renorm_prob", "sglang_gemma4.cpu.sampling:top_k_renorm", "absent"),
        Entry(f"{EAGLE}.__dict__", "top_p_renorm_prob", "sglang_gemma4.cpu.sampling:top_p_renorm", "absent"),
    ),
    cpu_engine=True,
)
