"""Images of a prefill on SGLang's triton and fa4 backends: bidirectional attention on sliding layers, as in transformers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sglang_gemma4.attention import image_spans
from sglang_gemma4.attention.prefill import INSTEAD, PrefillAttention
from sglang_gemma4.attention.prefill import declined as prefill_declined
from sglang_gemma4.patching import note, takes

NAME = "image_masks"


@dataclass
class ImageBatch:
    """What the new tokens of a prefill batch may see.

    Attributes:
        reach: ``[tokens]`` int32 on the batch's device: the last new token of its request, counted from 0, that a token sees.
        prefix_lens: per request, tokens before the new ones.
        query_lens: per request, new tokens.
    """

    reach: torch.Tensor
    prefix_lens: list[int]
    query_lens: list[int]
    masks: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def mask(self, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The custom mask of a sliding layer for SGLang's kernel, made for the first layer that asks.

        Args:
            window: the greatest distance of a key behind a query.

        Returns:
            The requests' masks ``[new tokens, keys]`` one behind the other, bool, where a request's keys are the last ``window`` of its
            prefix and its new tokens; and ``[requests + 1]`` int64, where each begins.
        """
        if window not in self.masks:
            device, parts, first = self.reach.device, [], 0
            for prefix, count in zip(self.prefix_lens, self.query_lens, strict=True):
                rows = torch.arange(count, device=device)[:, None]
                keys = torch.arange(-min(prefix, window), count, device=device)[None, :]
                parts.append(((keys <= self.reach[first : first + count, None]) & (keys >= rows - window)).flatten())
                first += count
            starts = [0]
            for part in parts:
                starts.append(starts[-1] + part.numel())
            self.masks[window] = torch.cat(parts), torch.tensor(starts, dtype=torch.int64).to(device, non_blocking=True)
        return self.masks[window]


def describe(forward_batch: Any, device: Any) -> ImageBatch | None:
    """What a prefill batch may see, decode rows of a mixed one included; None if it has no image or is no prefill."""
    spans = _spans(forward_batch)
    if spans is None:
        return None
    queries, prefixes = list(forward_batch.extend_seq_lens_cpu), list(forward_batch.extend_prefix_lens_cpu)
    ends = [prefix + count for prefix, count in zip(prefixes, queries, strict=True)]
    reach = image_spans.reach(spans, torch.tensor(ends), torch.tensor(queries))
    if reach is None:
        return None
    _tell_of_cuts(spans, prefixes, ends)
    own_zero = torch.repeat_interleave(torch.tensor(prefixes), torch.tensor(queries))
    return ImageBatch((reach - own_zero).int().to(device, non_blocking=True), prefixes, queries)


class FlashImageLayers:
    """Called by SGLang's fa4 backend for each layer of a prefill: sliding layers get the batch's images, full ones stay causal.

    SGLang itself passes images only of batches without decode rows, and no videos.

    Args:
        backend: SGLang's ``FlashAttentionBackend``; its ``init_forward_metadata`` and ``forward_extend`` are replaced.
    """

    def __init__(self, backend: Any) -> None:
        self.backend, self.prepare, self.attend = backend, backend.init_forward_metadata, backend.forward_extend
        backend.init_forward_metadata, backend.forward_extend = self.begin, self

    def begin(self, forward_batch: Any) -> None:
        """In place of ``init_forward_metadata``."""
        self.prepare(forward_batch)
        ranges = token_ranges(forward_batch)
        if ranges is not None:
            self.backend.forward_metadata.image_token_ranges = ranges.to(forward_batch.seq_lens.device, non_blocking=True)

    def __call__(self, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of ``forward_extend``."""
        metadata = self.backend.forward_metadata
        ranges = metadata.image_token_ranges
        if layer.sliding_window_size is None or layer.sliding_window_size < 0:
            metadata.image_token_ranges = None
        try:
            return self.attend(q, k, v, layer, *args, **kwargs)
        finally:
            metadata.image_token_ranges = ranges


def token_ranges(forward_batch: Any) -> torch.Tensor | None:
    """Images for SGLang's fa4 kernel: ``[tokens, 2]`` int32 on the host, first and last position of each token's image, -1 for text."""
    spans = _spans(forward_batch)
    if spans is None or not any(spans):
        return None
    queries, prefixes = list(forward_batch.extend_seq_lens_cpu), list(forward_batch.extend_prefix_lens_cpu)
    ends = [prefix + count for prefix, count in zip(prefixes, queries, strict=True)]
    _tell_of_cuts(spans, prefixes, ends)
    ranges = torch.full((sum(queries), 2), -1, dtype=torch.int32)
    first = 0
    for own, prefix, end in zip(spans, prefixes, ends, strict=True):
        for begin, last in own:
            if last >= prefix and begin < end:
                rows = slice(first + max(begin, prefix) - prefix, first + min(last + 1, end) - prefix)
                ranges[rows] = torch.tensor([begin, min(last, end - 1)], dtype=torch.int32)
        first += end - prefix
    return ranges


def _spans(forward_batch: Any) -> list[list[image_spans.Span]] | None:
    mode = forward_batch.forward_mode
    if not mode.is_extend() or mode.is_target_verify() or mode.is_draft_extend_v2() or forward_batch.mm_inputs is None:
        return None
    return [image_spans.of_inputs(inputs) for inputs in forward_batch.mm_inputs]


def _tell_of_cuts(spans: Sequence[Sequence[image_spans.Span]], prefixes: Sequence[int], ends: Sequence[int]) -> None:
    if any(begin < end <= last and last >= prefix for own, prefix, end in zip(spans, prefixes, ends, strict=True) for begin, last in own):
        # serving/image_chunks keeps images whole; other ways of scheduling may cut them.
        note(NAME, "a prefill chunk ends inside an image, whose first tokens do not see its last; --chunked-prefill-size -1 avoids it")


class ImageAttention:
    """Called by the triton backend for each layer of a prefill: sliding layers of a batch with images get a mask here.

    Args:
        inner: SGLang's ``extend_attention_fwd``, or our :class:`PrefillAttention` in its place.
        device: that the batches are on.
    """

    def __init__(self, inner: Callable[..., None], device: Any) -> None:
        self.inner, self.device = inner, device
        self.batch: ImageBatch | None = None
        self.masked = 0
        """Layers masked here; read by tests."""

    def begin(self, forward_batch: Any) -> None:
        """Begin a new batch, before its first layer."""
        self.batch = describe(forward_batch, self.device)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        k_buffer: torch.Tensor,
        v_buffer: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        custom_mask: torch.Tensor | None,
        is_causal: bool,
        mask_indptr: torch.Tensor | None,
        max_len_extend: int,
        k_scale: float,
        v_scale: float,
        sm_scale: float | None = None,
        sliding_window_size: int = -1,
        window_kv_offsets: torch.Tensor | None = None,
        **others: Any,
    ) -> None:
        """Write ``out`` ``[tokens, heads, value dim]``; the arguments are those of SGLang's ``extend_attention_fwd``."""
        common = (q, k, v, out, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices)
        batch = self.batch
        if batch is None or sliding_window_size < 0 or custom_mask is not None or not is_causal:
            self.inner(
                *common, custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=sm_scale,
                sliding_window_size=sliding_window_size, window_kv_offsets=window_kv_offsets, **others,
            )  # fmt: skip
            return
        self.masked += 1
        kernel = self.inner
        if isinstance(kernel, PrefillAttention):
            flags = {name: value for name, value in others.items() if name not in ("page_size", "extend_seq_lens_cpu")}
            reason = prefill_declined(None, is_causal, k_scale, v_scale, sm_scale, flags) or kernel.attend(
                common, max_len_extend, sm_scale or 1.0, sliding_window_size, batch.reach
            )
            if takes("prefill_attention", reason, INSTEAD):
                return
            kernel = kernel.stock
        # SGLang's kernel ends a causal tile at its last row, and bounds the window on both sides otherwise: so the mask says it all.
        mask, starts = batch.mask(sliding_window_size)
        kernel(
            *common, mask, False, starts, max_len_extend, k_scale, v_scale, sm_scale=sm_scale, sliding_window_size=-1,
            window_kv_offsets=None, skip_prefix_custom_mask=False, **others,
        )  # fmt: skip
