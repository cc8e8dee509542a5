"""The frozen-KV worker takes what the synchronous loop passes."""

import importlib
import inspect
from typing import Any

import pytest

from sglang_gemma4 import patching
from sglang_gemma4.patches import load
from sglang_gemma4.speculative.synchronous import PipelineParallelError, take_pipeline_argument
from tests.harness.child import InChild


def test_none_is_dropped_and_the_rest_passed_on() -> None:
    def original(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    seen = take_pipeline_argument(original, "worker", "batch", "publish", pp_proxy_tensors=None, grammar_barrier="barrier")
    assert seen == (("worker", "batch", "publish"), {"grammar_barrier": "barrier"})


def test_a_pipeline_stage_is_refused_with_what_to_do() -> None:
    with pytest.raises(PipelineParallelError, match="--pp-size 1"):
        take_pipeline_argument(lambda *_: None, "worker", "batch", pp_proxy_tensors={"hidden_states": 1})


def test_the_worker_takes_the_argument(in_child: InChild) -> None:
    """The synchronous loop's call binds to the patched method, and not to stock's."""
    importlib.import_module("sglang.srt.speculative.frozen_kv_mtp_worker_v2")

    def child() -> list[bool]:
        from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2 as Worker

        def binds() -> bool:
            try:
                Worker.forward_batch_generation(object(), object(), pp_proxy_tensors=None)
            except TypeError:
                return False
            except AttributeError:  # past the signature: the stub batch has no forward_mode
                return True
            return True

        before = binds()
        patching.apply([load("sync_mtp")], {"SGLANG_GEMMA4_STRICT": "1"})
        assert "grammar_barrier" in inspect.signature(Worker.forward_batch_generation).parameters, "found by inspection elsewhere"
        return [before, binds()]

    assert in_child(child) == [False, True]
