"""Fitting and evaluating models, and what accompanies a training."""
