"""SGLang's attention backends as Gemma 4 needs them.

- triton through our kernels: :mod:`verify`, :mod:`decode`, :mod:`prefill`; the whole sliding window: :mod:`triton_window`;
- long prefills through FlashAttention-4: :mod:`flash_prefill`, :mod:`flash_choice` (where it is faster), :mod:`flash_ahead` (compiling it);
- images that attend both ways: :mod:`image_spans`, :mod:`image_masks`;
- metadata inside CUDA graphs: :mod:`graph_metadata`; for other rows of the same batch: :mod:`second_metadata`.
"""
