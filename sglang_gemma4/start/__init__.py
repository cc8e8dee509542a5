"""How long a server takes until it is ready, and what makes that shorter: start table, remembered choices, kernels compiled ahead."""
