"""Served models, seen from outside: one streamed request, the server's process, its prompts. Several rooms use it."""
