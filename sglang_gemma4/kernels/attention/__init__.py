"""Attention of prefill, decode, verify and draft steps, and the tables it reads."""
