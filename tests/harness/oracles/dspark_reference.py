"""What a DSpark draft of DeepSpec's layout proposes, in plain torch and float32, from its checkpoint and its target in transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu, linear, scaled_dot_product_attention


class Reference:
    """The draft in ``folder`` beside its target, a transformers model."""

    def __init__(self, folder: Path, target: Any) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.target = target

    @torch.no_grad()
    def context(self, tokens: list[int]) -> torch.Tensor:
        """What the draft reads of each of the tokens, [tokens, hidden]: the target's layers side by side, projected and normed."""
        states = self.target(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
        read = torch.cat([states[layer + 1][0] for layer in self.config["target_layer_ids"]], dim=-1)
        return self._norm(self._times(read, "fc"), "hidden_norm")

    @torch.no_grad()
    def drafts(self, context: torch.Tensor, anchor: int, block: int) -> list[int]:
        """The ``block`` tokens that follow ``anchor``, a token whose ``context`` [tokens before it, hidden] is given."""
        table = self.weights["embed_tokens.weight"]
        hidden = table[[anchor, *[self.config["mask_token_id"]] * (block - 1)]] * self.config["hidden_size"] ** 0.5
        for number in range(self.config["num_hidden_layers"]):
            hidden = self._layer(f"layers.{number}.", hidden, context)
        cap = self.config["final_logit_softcapping"]
        logits = torch.tanh(linear(self._norm(hidden, "norm"), self.weights["lm_head.weight"]) / cap) * cap
        found = [anchor]
        for row in logits:
            bias = self._times(self.weights["markov_head.markov_w1.weight"][found[-1]], "markov_head.markov_w2")
            found.append(int((row + bias).argmax()))
        return found[1:]

    def _layer(self, layer: str, hidden: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        attended = self._attention(f"{layer}self_attn.", self._norm(hidden, f"{layer}input_layernorm"), context)
        hidden = hidden + self._norm(attended, f"{layer}post_attention_layernorm")
        inner = self._norm(hidden, f"{layer}pre_feedforward_layernorm")
        gated = gelu(self._times(inner, f"{layer}mlp.gate_proj"), approximate="tanh") * self._times(inner, f"{layer}mlp.up_proj")
        fed = self._norm(self._times(gated, f"{layer}mlp.down_proj"), f"{layer}post_feedforward_layernorm")
        return (hidden + fed) * self.weights[f"{layer}layer_scalar"]

    def _attention(self, attention: str, block: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Of every token of the block to all of the context and of the block."""
        both, size = torch.cat([context, block]), self.config["global_head_dim"]
        values = f"{attention}v_proj" if f"{attention}v_proj.weight" in self.weights else f"{attention}k_proj"
        q = self._norm(self._times(block, f"{attention}q_proj").unflatten(-1, (-1, size)), f"{attention}q_norm")
        k = self._norm(self._times(both, f"{attention}k_proj").unflatten(-1, (-1, size)), f"{attention}k_norm")
        v = self._norm(self._times(both, values).unflatten(-1, (-1, size)))
        q, k = self._rotated(q, len(context)), self._rotated(k, 0)
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, scale=1.0, enable_gqa=True)
        return self._times(out[0].transpose(0, 1).flatten(1), f"{attention}o_proj")

    def _rotated(self, heads: torch.Tensor, start: int) -> torch.Tensor:
        """[tokens, heads, head size] of tokens at ``start`` and behind."""
        from transformers.models.gemma4.modeling_gemma4 import apply_rotary_pos_emb

        positions = torch.arange(start, start + len(heads))[None]
        cos, sin = self.target.model.language_model.rotary_emb(heads[None], positions, "full_attention")
        rotated: torch.Tensor = apply_rotary_pos_emb(heads[None], cos, sin, unsqueeze_dim=2)[0]
        return rotated

    def _times(self, inputs: torch.Tensor, name: str) -> torch.Tensor:
        return linear(inputs, self.weights[f"{name}.weight"])

    def _norm(self, inputs: torch.Tensor, name: str | None = None) -> torch.Tensor:
        normed = inputs * torch.rsqrt(inputs.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return normed if name is None else normed * self.weights[f"{name}.weight"]
