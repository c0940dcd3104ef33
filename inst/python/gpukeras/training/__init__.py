"""Fits and evaluates models; predictions, callbacks and reports."""
