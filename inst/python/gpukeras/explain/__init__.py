"""Explains models: importance of columns, effects of columns, attributions of predictions."""
