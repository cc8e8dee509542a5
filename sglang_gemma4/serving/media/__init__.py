"""What clients send as media: judged, loaded within bounds, and compared with the prompt before the scheduler has it."""
