"""Reads facts about the computer and its packages without TensorFlow."""
