"""What computes a layer's result in place of SGLang's code: norms, attention's inputs, dense products, experts, heads."""
