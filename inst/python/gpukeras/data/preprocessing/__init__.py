"""What is learned from the training rows to turn values into numbers, and applied again."""
