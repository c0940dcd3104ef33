"""Reads rows of all kinds: arrays, data frames and files."""
