"""Engines: they run one training step, or many steps per call, compiled or not."""
