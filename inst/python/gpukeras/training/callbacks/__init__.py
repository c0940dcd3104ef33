"""Callbacks that run between epochs: early stopping, a user's functions, TensorBoard."""
