"""Bytes that kernels keep beside the weights, by arithmetic. Without torch, so that the command line can calculate with them."""

COPIED_SHARE = 1 / 16
"""Of a server's part of a card that weights may take which stay dequantised: 26B-A4B's dense ones, 3.1 GiB, from 80 GB on."""


def narrow_copy(tokens: int, width: int) -> int:
    """Bytes of the int8 copy of a head (``kernels/heads/narrow_scan.py``)."""
    return tokens * (width + 8) + 4 * width
