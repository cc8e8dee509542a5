"""What is installed, what is patched, what does not fit: preflight checks, the banner, ``doctor``."""
