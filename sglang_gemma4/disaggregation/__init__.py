"""KV transfer between prefill and decode servers: which rank sends which heads of which layers where, and the hooks into SGLang."""
