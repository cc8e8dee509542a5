"""The CPU reference engine: SGLang serving Gemma 4 on a machine without a GPU, exact in float32."""
