"""A DSpark draft for Gemma 4, in the layout that DeepSpec publishes (``Gemma4DSparkModel``), for SGLang's DSpark worker.

The draft reads hidden states of some of the target's layers and proposes a block of tokens in one forward. It has a few dense Gemma 4
layers, all of full attention; the tokens of a block attend to each other in both directions. A Markov head then adds a bias to each
token's logits by the token before. The checkpoint's embeddings and head are frozen copies of the target's, so the target's are used.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from sglang.srt.layers.layernorm import Gemma4RMSNorm, RMSNorm
from sglang.srt.models.dflash import DFlashAttention, DFlashDraftModel
from sglang.srt.models.dspark import DSparkDraftMixin
from sglang.srt.models.gemma4_causal import Gemma4MLP
from sglang.srt.models.utils import apply_qk_norm
from sglang.srt.utils import add_prefix
from torch import nn

from sglang_gemma4.checkpoint import PreflightError
from sglang_gemma4.checkpoint.whole_checkpoint import AGAIN
from sglang_gemma4.models.checkpoint_arrival import is_starting

FULL = "full_attention"
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""SGLang's fused parameters and the checkpoint's names of their parts."""
BORROWED = ("embed_tokens.", "lm_head.", "rotary_emb.")
"""Prefixes of checkpoint tensors that are not loaded."""


class DSparkAttention(DFlashAttention):
    """DFlash's attention with Gemma 4's norm of values, its rotary embedding and its scale of 1."""

    def __init__(self, config: Any, layer_id: int, quant_config: Any = None, prefix: str = "") -> None:
        own = copy.copy(config)
        own.rope_parameters = dict(config.rope_parameters[FULL])
        own.partial_rotary_factor = own.rope_parameters.pop("partial_rotary_factor", 1.0)
        own.is_causal = False
        super().__init__(own, layer_id, quant_config, prefix)
        self.scaling = self.attn.scaling = 1.0
        self.v_norm = Gemma4RMSNorm(self.head_dim, eps=config.rms_norm_eps, with_scale=False)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """Attend from the block's tokens to their context and to each other; writes the block's keys and values.

        Args:
            positions: [tokens], in the request.
            hidden_states: [tokens, hidden].

        Returns:
            [tokens, hidden].
        """
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k = apply_qk_norm(q, k, self.q_norm, self.k_norm, self.head_dim)
        q, k = self.rotary_emb(positions, q, k)
        out, _ = self.o_proj(self.attn(q, k, self._normed(v), forward_batch))
        return out

    def kv_proj_only(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Project context [tokens, hidden] to keys and values, both [tokens, heads * head_dim]: keys without norm, values normed."""
        k, v = super().kv_proj_only(hidden_states)
        return k, self._normed(v)

    def _normed(self, v: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.v_norm(v.reshape(-1, self.head_dim))
        return normed.view(v.shape)


class DSparkLayer(nn.Module):
    """A dense Gemma 4 layer: norms before and after attention and FFN, and a scale on their sum."""

    def __init__(self, config: Any, layer_id: int, quant_config: Any = None, prefix: str = "", **_no_convolutions: None) -> None:
        super().__init__()
        self.self_attn = DSparkAttention(config, layer_id, quant_config, add_prefix("self_attn", prefix))
        self.mlp = Gemma4MLP(
            config.hidden_size, config.intermediate_size, config.hidden_activation, quant_config, add_prefix("mlp", prefix)
        )
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            setattr(self, f"{name}_layernorm", RMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.layer_scalar = nn.Parameter(torch.ones(1), requires_grad=False)
        self.attention_conv = self.mlp_conv = None

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, forward_batch: Any, _residual: None
    ) -> tuple[torch.Tensor, None]:
        """Return the next hidden states [tokens, hidden], and None: there is no separate residual."""
        if hidden_states.numel() == 0:
            return hidden_states, None
        attended = self.self_attn(positions, self.input_layernorm(hidden_states), forward_batch)
        hidden_states = hidden_states + self.post_attention_layernorm(attended)
        fed = self.mlp(self.pre_feedforward_layernorm(hidden_states))
        return (hidden_states + self.post_feedforward_layernorm(fed)) * self.layer_scalar, None


class TiedHead:
    """Gemma 4's head, which is its embedding, whole on each rank, with what SGLang's DSpark asks of a head."""

    def __init__(self, embedding: nn.Embedding) -> None:
        self.embedding, self.org_vocab_size = embedding, embedding.num_embeddings

    @property
    def weight(self) -> torch.Tensor:
        """[vocabulary, hidden], the embedding's current one."""
        return self.embedding.weight


class DSparkForGemma4(DSparkDraftMixin, DFlashDraftModel):  # type: ignore[misc]
    """SGLang's DSpark draft with Gemma 4's layers, head and layout of tensors."""

    decoder_layer_cls = DSparkLayer
    supports_fused_context_kv = False

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config=config, quant_config=quant_config, prefix=prefix)
        self.softcap = getattr(config, "final_logit_softcapping", None)

    def attach_shared_modules(self, *, embed_tokens: nn.Module, lm_head: nn.Module) -> None:
        """Use the target's embedding and head."""
        head = TiedHead(lm_head) if isinstance(lm_head, nn.Embedding) else lm_head
        super().attach_shared_modules(embed_tokens=embed_tokens, lm_head=head)

    def compute_base_logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [tokens, vocabulary], soft-capped, without the Markov head's bias, and ``hidden``, which the confidence head reads.

        Args:
            hidden: [tokens, hidden].
        """
        if isinstance(self.lm_head, TiedHead):
            logits = hidden.to(self.lm_head.weight.dtype) @ self.lm_head.weight.T
        else:
            logits, _ = super().compute_base_logits(hidden)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap, hidden

    def prune_to_ctx_kv_injection(self) -> None:
        """Free what a prefill server does not use: everything but the projections of context."""
        self.markov_head = self.confidence_head = None
        for layer in self.layers:
            layer.mlp = layer.self_attn.o_proj = None

    def _stacked_ctx_kv_params(self) -> None:
        """Return None: SGLang's single product for all layers does not norm values."""

    def _build_fused_kv_write_bundle(self, _pool: Any) -> None:
        """Return None: SGLang's fused kernel does not norm values."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load a checkpoint's tensors. Where keys and values share a projection, the keys' tensor is loaded for both.

        Raises:
            PreflightError: a starting server's checkpoint has no tensor for some parameter.
        """
        arrived: set[str] = set()
        super().load_weights(self._spelled(weights, arrived))
        missing = sorted(name for needed in self.named_parameters() for name in _sources(needed[0]) if name not in arrived)
        if missing and is_starting():
            raise PreflightError(f"the DSpark draft has no {missing[0]} ({len(missing)} tensors are missing): {AGAIN}")

    def _spelled(self, weights: Iterable[tuple[str, torch.Tensor]], arrived: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for given, tensor in weights:
            name = given.removeprefix("model.")
            if name.startswith(BORROWED):
                continue
            both = self.config.attention_k_eq_v and ".k_proj." in name
            for each in (name, name.replace(".k_proj.", ".v_proj.")) if both else (name,):
                arrived.add(each)
                yield each, tensor


def _sources(parameter: str) -> list[str]:
    """Return the checkpoint's names of a parameter's tensors."""
    for fused, parts in FUSED.items():
        if f".{fused}." in parameter:
            return [parameter.replace(f".{fused}.", f".{part}.") for part in parts]
    return [parameter]
