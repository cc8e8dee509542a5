"""Measures what a change costs in quality: MMLU, colour naming and perplexity of a running server, and a paired comparison of two runs."""
