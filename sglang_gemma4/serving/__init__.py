"""What stands between a client and the engine: starting the server, tool calls."""
