"""Memory that kernels keep in addition to the weights. Imports no torch, so that the command line can use it."""

COPIED_SHARE = 1 / 16
"""Largest share of a server's GPU memory for dequantised dense weights: 26B-A4B's 3.1 GiB fit from 80 GB on."""
