"""Check matrices for row-wise kernels: two-dimensional, contiguous rows, a floating-point type that kernels support."""

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def reason_against_rows(**matrices: torch.Tensor) -> str | None:
    """Why these are not all two-dimensional with contiguous rows and of one type of :data:`DTYPES`, or None."""
    types = {matrix.dtype for matrix in matrices.values()}
    if len(types) == 1 and types <= set(DTYPES) and all(matrix.dim() == 2 and matrix.stride(1) == 1 for matrix in matrices.values()):
        return None
    found = ", ".join(f"{name} is {tuple(one.shape)} of {one.dtype} with strides {one.stride()}" for name, one in matrices.items())
    return f"{found}; matrices with contiguous rows, all of one of float32, bfloat16 and float16, are supported"
