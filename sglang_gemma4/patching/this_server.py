"""Model, flags and GPU of the server that a process belongs to."""

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Server:
    """Model, flags and GPU of the server that this process belongs to, as SGLang resolved them.

    ``text`` is the config of the language model. ``capability`` is the GPU's compute capability, None without a CUDA
    GPU. ``kernels`` says whether Triton's kernels run: on a GPU, or under its interpreter.
    """

    arguments: Any
    config: Any
    text: Any
    prefill_backend: str | None
    decode_backend: str | None
    capability: tuple[int, int] | None
    kernels: bool

    @property
    def architecture(self) -> str:
        """The model's class."""
        return str((self.config.architectures or ["unknown"])[0])

    @property
    def shared_layers(self) -> int:
        """Layers that read another layer's keys and values."""
        return getattr(self.text, "num_kv_shared_layers", 0) or 0


def of_this_process() -> Server | None:
    """The server of this process, or None where SGLang has published no arguments in it (``doctor``, the tests of patches)."""
    if "sglang.srt.runtime_context" not in sys.modules:
        return None
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of, resolved_view
    from sglang.srt.runtime_context import get_server_args

    try:
        given = get_server_args()
    except ValueError:
        return None
    if given is None or not hasattr(given, "_resolved_overrides"):
        return None
    import torch
    from triton import knobs

    resolved, config = resolved_view(given), model_config_of(given).hf_config
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() and torch.version.cuda else None
    kernels = torch.cuda.is_available() or bool(knobs.runtime.interpret)
    prefill, decode = attention_backends_of(resolved)
    return Server(resolved, config, getattr(config, "text_config", config), prefill, decode, capability, kernels)
