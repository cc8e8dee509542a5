"""The table of all cases."""

from sglang_gemma4.benchmark.kernels import attention, chain, dense_chain, experts, four_bits, heads, layers, quantised

CASES = {
    case.name: case for module in (attention, heads, experts, layers, chain, dense_chain, quantised, four_bits) for case in module.CASES
}
