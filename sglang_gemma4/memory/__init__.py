"""What the KV pools hold and how large they are."""
