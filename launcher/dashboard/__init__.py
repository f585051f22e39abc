"""A run, or peers that run already, as a live page."""
