"""Quantised layers on a CPU as a GPU holds them, for kernels that are interpreted:
``TEST_INSTRUMENTS=quantised_layers:install``.

SGLang's own rearrangement of a compressed-tensors checkpoint runs, not the reference engine's, which dequantises.
What our kernels leave to SGLang is multiplied in float32 with unquantised activations, so that both ways compute the
same. 4-bit linear layers stay as loaded under SGLANG_GEMMA4_FOUR_BIT_ROWS; otherwise they are dequantised, because a
GPU repacks them for Marlin.
"""

from typing import Any

import torch


def install() -> None:
    """Install; one log line for each type of GEMM that takes a quantised weight, and one where a 4-bit weight is
    dequantised."""
    from sglang.srt.layers.quantization import fp8
    from sglang.srt.layers.quantization.compressed_tensors import schemes

    from sglang_gemma4.cpu import quantised
    from sglang_gemma4.models.layers import expert_activation, few_row_linear, four_bit_layers

    layers: Any = quantised
    activations: Any = expert_activation
    dequantise = layers.linear_of_checkpoint

    def rearrange(original: Any, method: Any, layer: Any) -> None:
        if hasattr(layer, "weight_packed") and not getattr(layer.scheme, "as_loaded", False):
            dequantise(original, method, layer)
        else:
            original(method, layer)

    layers.linear_of_checkpoint = layers.experts_of_checkpoint = rearrange
    quantise_without_card()
    layers.linear_at_load = layers.experts_at_load = lambda original, method, layer: original(method, layer)
    fp8.Fp8LinearMethod.apply = linear
    fp8.Fp8MoEMethod.apply = experts
    schemes.CompressedTensorsW8A8Fp8.apply_weights = linear
    schemes.CompressedTensorsW8A8Fp8MoE.apply_weights = experts
    activations.run_gelu = lambda _original, scheme, layer, dispatch_output: experts(scheme, layer, dispatch_output)
    module: Any = few_row_linear
    multiply, said = module.few_row_linear, set[str]()

    def announced(x: torch.Tensor, weight: Any, done: torch.Tensor, gated: bool = False) -> torch.Tensor:
        if not isinstance(weight, torch.Tensor):
            blocks = f", in blocks of {weight.block}" if getattr(weight, "block", 0) else ""
            line = f"{'FP8' if hasattr(weight, 'block') else '4-BIT'} ROWS, {'gated' if gated else 'plain'}{blocks}."
            if line not in said:
                said.add(line)
                print(line, flush=True)
        out: torch.Tensor = multiply(x, weight, done, gated=gated)
        return out

    module.few_row_linear = announced
    kept: Any = four_bit_layers
    write = kept.write_out

    def written(weight: Any, room: torch.Tensor) -> torch.Tensor:
        if "written" not in said:
            said.add("written")
            print("A WEIGHT written out.", flush=True)
        out: torch.Tensor = write(weight, room)
        return out

    kept.write_out = written


def quantise_without_card() -> None:
    """SGLang's quantisation of weights while they are loaded, in torch, with the scales that a GPU with fp8 GEMMs
    gets."""
    from sglang.srt.layers.quantization import fp8, utils
    from sglang.srt.layers.quantization.compressed_tensors.schemes import compressed_tensors_w8a8_fp8_moe

    card: Any = fp8
    others: list[Any] = [utils, compressed_tensors_w8a8_fp8_moe]
    for module in (card, *others):
        module.scaled_fp8_quant = by_tensor
    card._is_cpu = False
    card.cutlass_fp8_supported = lambda: True
    card.per_token_group_quant_fp8 = by_output


def by_tensor(values: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantised values with one scale for the tensor; returns both."""
    if scale is None:
        scale = values.abs().max().float().clamp(min=1e-12) / 448
    return (values.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)


def by_output(values: torch.Tensor, _width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantised values with a scale for each row; returns both, scales ``[rows, 1]``."""
    scale = values.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
    return (values.float() / scale).to(torch.float8_e4m3fn), scale


def linear(_scheme: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` in float32."""
    from sglang_gemma4.kernels.weights import dequantised
    from sglang_gemma4.models.layers.weight_formats import linear_weight

    return torch.nn.functional.linear(x, dequantised(linear_weight(layer)), bias)


def experts(_scheme: Any, layer: Any, dispatch_output: Any) -> Any:
    """Each token's experts in float32, weighted and added up."""
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    from sglang_gemma4.kernels.weights import dequantised
    from sglang_gemma4.models.layers.weight_formats import experts_weights

    x, routed = dispatch_output.hidden_states, dispatch_output.topk_output
    w13, w2 = map(dequantised, experts_weights(layer))
    out = torch.zeros_like(x)
    for expert in routed.topk_ids.unique().tolist():
        token, place = (routed.topk_ids == expert).nonzero(as_tuple=True)
        gate, up = torch.nn.functional.linear(x[token], w13[expert]).chunk(2, dim=-1)
        inner = torch.nn.functional.gelu(gate, approximate="tanh") * up
        out.index_add_(0, token, torch.nn.functional.linear(inner, w2[expert]) * routed.topk_weights[token, place, None])
    return StandardCombineInput(hidden_states=out)
