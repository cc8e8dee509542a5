"""How long a server takes to start, and what shortens that: start table, remembered choices, kernels compiled ahead."""
