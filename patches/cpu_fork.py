"""A CPU server's scheduler and detokenizer are forked from its first process, so that SGLang is imported once."""

from sglang_gemma4.patching import Hook, Patch

PATCH = Patch(
    switch="SGLANG_GEMMA4_CPU",
    why="SGLang starts each of a server's processes anew, and each imports SGLang again: most of a small model's start on a CPU.",
    evidence="entrypoints/engine.py:1995",
    remove_when="SGLang forks its processes where there is no accelerator.",
    hooks=(
        Hook(
            "sglang.srt.entrypoints.engine._set_envs_and_config",
            "after",
            "sglang_gemma4.cpu.processes:fork_children",
            "b3ddd8a51c62",
        ),
    ),
    cpu_engine=True,
)
