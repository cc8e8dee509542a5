"""What is installed, what is patched and what does not fit: preflight checks, the banner, ``doctor``."""
