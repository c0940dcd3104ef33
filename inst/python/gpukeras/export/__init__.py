"""Saves, loads and exports models, and checks files before loading."""
