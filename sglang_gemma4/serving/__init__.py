"""Between a client and the engine: server start, checks of requests, grammars, answers and tool calls."""
