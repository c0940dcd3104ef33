"""Compiles programs of JAX for GPUs that are not here, and reads what they would do."""
