"""Samples the use of the computer and its GPUs in a separate process while code runs."""
