"""How a server's processes begin: forked on a CPU, where nothing forbids it; the engine tests start such servers."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load as load_patch
from sglang_gemma4.patching.switches import WITHOUT
from sglang_gemma4.tiny import checkpoints


@pytest.mark.parametrize(
    ("device", "without", "method"),
    [("cpu", "", "fork"), ("cpu", "cpu_fork", "spawn"), ("cuda", "", "spawn")],
    ids=["cpu", "without", "accelerator"],
)
def test_how_a_server_s_processes_begin(device: str, without: str, method: str, in_child: Callable[[Callable[[], Any]], Any]) -> None:
    def begin() -> str:
        patching.apply([load_patch("cpu_fork")], {"SGLANG_GEMMA4_CPU": "1", WITHOUT: without})
        from sglang.srt.entrypoints import engine
        from sglang.srt.server_args import ServerArgs

        given = ServerArgs(model_path=str(checkpoints.SHIPPED / "tiny-e2b"), device=device)
        engine._set_envs_and_config(given)
        return str(multiprocessing.get_start_method())

    assert in_child(begin) == method
