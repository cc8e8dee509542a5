"""Small trained Gemma 4 checkpoints that keep every structural feature of the released ones, and the recipe that made them.

Their quantiser also serves ``sglang-gemma4 quantize`` (``convert.py``), for checkpoints of any size.
"""
