"""What runs between epochs: early stopping, a user's functions, TensorBoard."""
