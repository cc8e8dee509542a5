"""Where nothing was chosen, a server of Gemma 4 on one CUDA machine hands image features over on the card; what was typed stands."""

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt import runtime_context
from sglang.srt.arg_groups import memory_hook, serving_hook
from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
from sglang.srt.environ import envs
from sglang.srt.server_args import ServerArgs

from sglang_gemma4.serving.media import image_transport
from sglang_gemma4.serving.media.image_transport import stay_on_card
from sglang_gemma4.tiny import checkpoints


def resolve(monkeypatch: pytest.MonkeyPatch, cuda: bool = True, mib: int = 81_559, **asked: Any) -> str:
    """What SGLang's own resolution makes of it after ours."""
    server_args = ServerArgs(**{"model_path": str(checkpoints.SHIPPED / "tiny-e2b"), **asked})
    model_config_of(server_args)  # imports much that asks for the platform, too
    for module in (runtime_context, serving_hook):
        monkeypatch.setattr(module, "get_platform", lambda: SimpleNamespace(is_cuda=cuda))
    monkeypatch.setattr(envs.SGLANG_USE_CUDA_IPC_TRANSPORT, "set", lambda _: None)  # SGLang writes what was chosen into the environment
    monkeypatch.setattr(memory_hook, "get_device_memory_capacity", lambda _: mib)
    stay_on_card(server_args)
    serving_hook.handle_multimodal_feature_transport(server_args)
    found: str = resolving_view(server_args).mm_feature_transport
    return found


def test_on_one_cuda_machine_features_stay_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(monkeypatch) == "cuda_ipc"
    assert resolve(monkeypatch, mib=32_607) == "cuda_ipc"
    assert resolve(monkeypatch, mib=24_564, mm_feature_transport="cuda_ipc") == "cuda_ipc", "a choice of the operator's stands"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cuda": False}, []),
        ({"mm_feature_transport": "cpu"}, []),
        ({"nnodes": 2}, ["--nnodes 2"]),
        ({"tp_size": 2}, ["--tp-size 2"]),
        ({"mib": 24_564}, ["the GPU has 24 GiB, and they would take 2.4; --mm-feature-transport cuda_ipc has them stay there"]),
        ({"disaggregation_mode": "prefill"}, ["--disaggregation-mode prefill"]),
        ({"encoder_only": True}, ["--encoder-only"]),
        ({"language_model_only": True}, []),
        ({"enable_multimodal": False}, []),
    ],
    ids=lambda asked: next(iter(asked), None) if isinstance(asked, dict) else "",
)
def test_elsewhere_it_is_sglang_s_choice(asked: dict[str, Any], said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(image_transport, "decline", lambda name, message: heard.append(message))
    assert resolve(monkeypatch, **asked) == "cpu"
    assert [words in message for words, message in zip(said, heard, strict=True)] == [True] * len(said)


def test_the_older_name_of_the_flag_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_CUDA_IPC_TRANSPORT", "0")
    assert resolve(monkeypatch) == "cpu"


@pytest.mark.parametrize(
    ("environ", "kernel", "said"),
    [
        ({}, "6.8.0-45-generic", None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:False"}, "6.8.0", None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments: True"}, "6.8.0", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments: True"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:true"}, "6.8.0", "PYTORCH_ALLOC_CONF=expandable_segments:true"),
        ({}, "5.15.153.1-microsoft-standard-WSL2", "CUDA on WSL"),
    ],
)
def test_where_no_process_can_open_another_s_memory(environ: dict[str, str], kernel: str, said: str | None) -> None:
    found = image_transport._reason_against_handles(environ, kernel)
    assert (found is None) if said is None else str(found).startswith(said)
