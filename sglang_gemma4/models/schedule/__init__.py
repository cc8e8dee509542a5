"""When, where and over which rows layers run: CUDA graphs of prefills, rows that are read, a second stream."""
