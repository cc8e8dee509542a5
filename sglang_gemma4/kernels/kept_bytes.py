"""Bytes that kernels keep beside the weights, by arithmetic. Without torch, so that the command line can calculate with them."""

COPIED_SHARE = 1 / 16
"""Of a server's part of a card that weights may take which stay dequantised: 26B-A4B's dense ones, 3.1 GiB, from 80 GB on."""
