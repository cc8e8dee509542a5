"""Norms, rotation and residuals of a decoder layer."""
