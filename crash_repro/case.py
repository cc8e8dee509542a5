"""One engine on a tiny checkpoint, random and text-only or one that ships, and transformers beside it as the oracle.

The engine runs on the CPU reference engine in float32, in a process of its own (``engines.py``).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENS = 24
PROMPTS = [[2] + [(7 * i + 31 * n + 5 * n * i) % 700 + 300 for i in range(length - 1)] for n, length in enumerate((50, 90))]
"""Longer than the tiny models' sliding windows (32 and 64 tokens), or soon to be."""


def text_model(family: str = "tiny-31b", seed: int = 0) -> Any:
    """A random ``Gemma4ForCausalLM`` in float32 in which no norm, scalar or router scale is an identity."""
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    from sglang_gemma4.tiny import families

    torch.manual_seed(seed)
    config = {**families.TEXT[family], "use_bidirectional_attention": None}
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config, initializer_range=0.12, dtype=torch.float32)).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("router.scale"):
            spread = 1.0 if "router" in name else 0.1
            parameter.data = 1 + spread * torch.randn(parameter.shape)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.data.fill_(0.8)
    return model


def negative_gates_model() -> Any:
    """A random MoE model whose experts' gates lie around -4 in the first layer and -1 in the last, where gelus differ.

    Channel 0 of the residual stream is a large constant, which nothing adds to and every gate subtracts.
    """
    import torch

    model = text_model("tiny-26b-a4b")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 4 * model.model.embed_tokens.weight.std()
        for layer in model.model.layers:
            for norm in (layer.post_attention_layernorm, layer.post_feedforward_layernorm):
                norm.weight[0] = 0
            layer.pre_feedforward_layernorm_2.weight.fill_(1)
            gates = layer.experts.gate_up_proj[:, : layer.experts.gate_up_proj.shape[1] // 2]
            gates.mul_(0.5)
            gates[:, :, 0] = -1.2
    return model


def assistant_model(family: str = "tiny-31b") -> Any:
    """A random assistant that fits ``text_model(family)``; its drafts are accepted by chance only."""
    import torch
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4_assistant import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

    from sglang_gemma4.tiny import families

    torch.manual_seed(3)
    config = Gemma4AssistantConfig(text_config=Gemma4TextConfig(**families.assistant_text(family)), **families.assistant(family))
    return Gemma4AssistantForCausalLM(config).to(torch.float32)


def save(model: Any, path: Path, sglang_names: bool = True) -> Path:
    """Save as transformers does; with ``sglang_names`` state a text config as stock SGLang can read it."""
    model.save_pretrained(path)
    if sglang_names:
        file = path / "config.json"
        config = json.loads(file.read_text())
        full = next(iter(config["per_layer_config"].values()))
        for name in ("head_dim", "num_key_value_heads"):
            config[f"swa_{name}"] = config[name]
            config[name] = full.get(name, config[name])
        config.update(v_head_dim=config["head_dim"], swa_v_head_dim=config["swa_head_dim"], per_layer_config={})
        file.write_text(json.dumps(config))
    return path


def greedy(model: Any, tokens: int = TOKENS) -> list[list[int]]:
    """transformers' greedy continuation of each prompt."""
    import torch

    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return [model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist() for prompt in PROMPTS]


def generate(
    model: Path,
    updated: Path | None = None,
    env: Mapping[str, str] | None = None,
    tokens: int = TOKENS,
    prepare: str | None = None,
    **engine: Any,
) -> list[Any] | str:
    """The engine's greedy continuations, with ``updated`` also those after loading its weights; or its last error line."""
    import engines  # type: ignore[import-not-found]  # here: tests import this file as a part of the repository

    extra = {"prompts": PROMPTS, "tokens": tokens, "updated": updated and str(updated)}
    found: list[Any] | str = engines.ask(model, "case:continue_prompts", extra, env, prepare, **engine)
    return found


def continue_prompts(engine: Any, extra: Mapping[str, Any]) -> list[Any]:
    """The client of :func:`generate`."""
    sampling = {"max_new_tokens": extra["tokens"], "temperature": 0, "ignore_eos": True}

    def answers() -> list[list[int]]:
        return [output["output_ids"] for output in engine.generate(input_ids=extra["prompts"], sampling_params=sampling)]

    seen: list[Any] = answers()
    if extra["updated"]:
        engine.update_weights_from_disk(extra["updated"])
        engine.flush_cache()  # the update's own flush is refused while the scheduler still holds the answered requests
        seen = [seen, answers()]
    return seen


def verdict(expected: object, seen: object) -> int:
    """Print both and return the exit status."""
    print(f"expected: {expected}\nsaw:      {seen}\n{'as expected' if seen == expected else 'WRONG'}")
    return 0 if seen == expected else 1
