"""Triton kernels, grouped by what they compute, each with a torch reference that it must equal. None imports SGLang.

A short operation is one file, a long one a folder whose ``kernels.py`` holds the Triton kernels. :mod:`card`
describes the GPU, :mod:`dependent_launch` overlaps kernels, and :mod:`matrices` checks the matrices of row-wise
kernels.
"""
