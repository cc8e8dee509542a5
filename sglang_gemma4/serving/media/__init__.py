"""Clients' media: checked, loaded within limits, and compared with the prompt before they reach the scheduler."""
