"""The experts of a MoE layer: routing, and the products at few, some and many tokens."""
