"""Rows that come in sequence: functions that make batches, and tf.data pipelines."""
