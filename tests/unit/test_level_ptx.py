"""PTX by which int8 levels of a KV cache become bfloat16, by the interpreter of ``test_four_bit_ptx``."""

import pytest

from sglang_gemma4.kernels.attention.few_query_attention import kernels
from tests.unit.test_four_bit_ptx import halves, run


@pytest.mark.parametrize("place", range(4))
def test_every_level_at_every_place_of_two_words_is_itself(place: int) -> None:
    ptx = kernels._of_place(place).value
    for level in range(-128, 128):
        for other in (-level - 1, 0, 127, -128):
            words = [0xA55A7E81 & ~(255 << 8 * place) | (one & 255) << 8 * place for one in (level, other)]
            assert halves(*run(ptx, *words)) == [level, other]
