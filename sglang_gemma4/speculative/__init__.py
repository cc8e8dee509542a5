"""Multi-token prediction with Gemma 4's assistants."""
