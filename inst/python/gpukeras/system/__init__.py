"""Facts about the computer and its packages, read without TensorFlow."""
