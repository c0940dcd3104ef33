"""Counts FLOPs and memory of a model without running it."""
