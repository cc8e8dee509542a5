"""Ollama's API over SGLang's chat: requests are judged and translated, answers are translated back, whole and streamed."""
