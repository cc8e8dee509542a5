"""Does a change cost quality: MMLU, colour naming and perplexity through a running server, and paired comparison of two runs."""
