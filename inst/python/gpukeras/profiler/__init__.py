"""Reads traces, attributes their time and judges what bounds a training step."""
