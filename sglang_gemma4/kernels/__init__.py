"""Triton kernels, grouped by what they compute; each beside the torch reference it must equal. They know nothing of SGLang.

An operation is a file, or a folder where it is long, whose ``kernels.py`` has the Triton kernels. :mod:`card` says what a card has,
:mod:`dependent_launch` how kernels overlap, :mod:`matrices` what kernels over rows take.
"""
