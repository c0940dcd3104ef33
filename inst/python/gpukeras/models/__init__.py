"""Builds Keras models, checks that they fit a dataset, and copies and restores their state."""
