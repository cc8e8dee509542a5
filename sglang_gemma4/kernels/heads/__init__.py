"""Tokens from LM heads without logits in memory."""
