"""Keras models: built, matched with rows, their state copied and restored."""
