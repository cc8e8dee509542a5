"""PTX by which 4-bit and fp8 levels become bfloat16: what its instructions compute, by an interpreter of the few that are used."""

import re

import pytest
import torch

from sglang_gemma4.kernels import four_bits, register_layouts

LEVELS = list(range(16))
SCALES = torch.tensor([2.0**-9, 0.00714, 0.0131, 0.049, 0.37, 1.0, 3.14, 2.0**-40, 2.0**30]).bfloat16()


def halves(register: int) -> list[float]:
    """The two bfloat16 numbers in 32 bits, the low one first."""
    bits = torch.tensor([register & 0xFFFF, register >> 16], dtype=torch.int32).to(torch.int16)
    found: list[float] = bits.view(torch.bfloat16).double().tolist()
    return found


def register(low: float, high: float) -> int:
    """32 bits of two numbers, each rounded to bfloat16 once: a float32 holds every sum here."""
    bits = torch.tensor([low, high], dtype=torch.float64).float()
    assert bits.double().tolist() == [low, high]
    first, second = (int(one) & 0xFFFF for one in bits.bfloat16().view(torch.int16))
    return second << 16 | first


def run(ptx: str, *given: int, results: int = 1) -> list[int]:
    """What a string of PTX leaves in its first operands, the ``results`` before those given."""
    found = {f"${number}": value for number, value in enumerate(given, results)}

    def value(word: str) -> int:
        if word.startswith("{"):
            low, high = map(value, word.strip("{}").split(", "))
            return high << 16 | low
        return found[word] if word in found else int(word, 0)

    for instruction in filter(None, (part.strip() for part in ptx.strip()[1:-1].split(";"))):
        if instruction.startswith(".reg"):
            continue
        name, rest = instruction.split(" ", 1)
        target, *words = re.findall(r"\{[^}]*\}|[^\s,]+", rest)
        numbers = list(map(value, words))
        match name:
            case "mov.b32":
                result = numbers[0]
            case "shr.u32":
                result = numbers[0] >> numbers[1]
            case "shl.b32":
                result = numbers[0] << numbers[1]
            case "and.b32":
                result = numbers[0] & numbers[1]
            case "lop3.b32":
                assert numbers[3] == 0xEA, "(first and second) or third"
                result = numbers[0] & numbers[1] | numbers[2]
            case "prmt.b32":
                both = numbers[1] << 32 | numbers[0]
                result = sum((both >> 8 * (numbers[2] >> 4 * place & 7) & 255) << 8 * place for place in range(4))
            case "fma.rn.bf16x2":
                products = [x * y + z for x, y, z in zip(*map(halves, numbers), strict=True)]
                result = register(*products)
            case _:
                raise AssertionError(f"{name} is not known here")
        if target.startswith("{"):
            low, high = target.strip("{}").split(", ")
            found[low], found[high] = result & 0xFFFF, result >> 16 & 0xFFFF
        else:
            found[target] = result & 0xFFFFFFFF
    return [found[f"${number}"] for number in range(results)]


def weights(place: int, words: tuple[int, int], scale: int, zeros: int | None = None) -> int:
    """Two weights, as the kernels make them."""
    (both,) = run(four_bits.at_place(place, zeros is not None), *words, scale, *(() if zeros is None else (zeros,)))
    return both


@pytest.mark.parametrize("place", range(8))
def test_a_weight_is_its_level_times_its_scale_rounded_once(place: int) -> None:
    for scale in SCALES.tolist():
        both = register(scale, scale)
        for level in LEVELS:
            other = 15 - level
            words = 0x5A3C96F0 & ~(15 << 4 * place) | level << 4 * place, 0xC3965A0F & ~(15 << 4 * place) | other << 4 * place
            expected = torch.tensor([(level - 8) * scale, (other - 8) * scale]).bfloat16().double()
            assert halves(weights(place, words, both)) == expected.tolist()


@pytest.mark.parametrize("place", range(8))
def test_less_its_zero_point_where_levels_are_not_symmetric(place: int) -> None:
    """The operand is -128 less the zero point, whose bits are -128's and its own."""
    for zero in LEVELS:
        assert register(-128.0 - zero, -128.0 - zero) == (0xC300 | zero) << 16 | 0xC300 | zero
        for scale in SCALES.tolist():
            for level in LEVELS:
                words = level << 4 * place, (15 - level) << 4 * place
                expected = torch.tensor([(level - zero) * scale, (15 - level - zero) * scale]).bfloat16().double()
                found = weights(place, words, register(scale, scale), (0xC300 | zero) * 0x10001)
                assert halves(found) == expected.tolist()


def test_the_weights_of_a_word_in_registers_are_the_same() -> None:
    """Eight of an output, first the pairs of inputs four apart."""
    ptx = register_layouts.FOUR_BITS.value
    for scale in SCALES.tolist():
        sixteen = register(scale, 0.0)
        for word in (0x76543210, 0xFEDCBA98, 0x5A3C96F0, 0x00000000, 0xFFFFFFFF):
            levels = [word >> 4 * place & 15 for place in range(8)]
            expected = torch.tensor([(levels[place] - 8) * scale for place in (0, 4, 1, 5, 2, 6, 3, 7)]).bfloat16().double()
            found = run(ptx, word, sixteen, results=8)
            assert [halves(one)[0] for one in found] == expected.tolist()


def test_every_fp8_level_in_registers() -> None:
    """In each byte of a word; first those of both halves' low bytes. What is no number becomes one."""
    values = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).double().tolist()
    for first in range(256):
        levels = [first, 255 - first, first ^ 0x55, first ^ 0xAA]
        word = sum(level << 8 * place for place, level in enumerate(levels))
        found = [halves(one)[0] for one in run(register_layouts.FP8.value, word, results=4)]
        for number, place in zip(found, (0, 2, 1, 3), strict=True):
            assert number == values[levels[place]] or levels[place] & 0x7F == 0x7F
