"""Ollama's API over SGLang's chat: requests are checked and translated, answers are translated back, whole and streamed."""
