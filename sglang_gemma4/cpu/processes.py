"""Fork the processes of a CPU server from the one that has imported SGLang; SGLang itself would spawn each."""

import multiprocessing
from multiprocessing import util
from typing import Any

from sglang_gemma4 import patching
from sglang_gemma4.cpu import threads


def fork_children(_: None, server_args: Any) -> None:
    """After ``_set_envs_and_config``, which asks for spawned processes, since a CUDA context does not survive a fork.

    A CPU server has no CUDA context. A child that renews PyTorch's thread pool in two threads at once fails ("Invalid
    thread pool!", from transformers' loading threads), so each renews it while it has one thread. Other forks, such as
    the processes that try grammars, have no use for the threads.
    """
    import torch
    from sglang.srt.arg_groups.overrides import resolving_view

    if resolving_view(server_args).device != "cpu":
        return
    patching.tell("cpu_fork", threads.said(torch.get_num_threads()))
    util.register_after_fork(patching, lambda _: torch.set_num_threads(torch.get_num_threads()))
    multiprocessing.set_start_method("fork", force=True)
