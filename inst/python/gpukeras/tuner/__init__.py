"""The two searches before a training: its batch size and its learning rate."""
