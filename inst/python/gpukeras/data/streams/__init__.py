"""Reads rows in sequence, from functions that make batches and from tf.data pipelines."""
