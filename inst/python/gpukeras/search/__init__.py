"""Searches the settings of models: designs of trials, and successive halving."""
