"""Smaller and faster models, and what they lost by it."""
