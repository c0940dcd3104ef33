"""Searches a batch size and a learning rate before a training."""
