"""KV between a prefill and a decode server: which rank sends which heads of which layers where, and what puts it under SGLang."""
