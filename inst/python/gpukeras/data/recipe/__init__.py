"""Learns from the training rows how to encode values as numbers, and applies it to new rows."""
