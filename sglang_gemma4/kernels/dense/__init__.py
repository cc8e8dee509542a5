"""Dense layers: GEMMs of few rows (:mod:`few_row_linear`), the gate of per-layer embeddings (:mod:`gated_embedding`)."""
