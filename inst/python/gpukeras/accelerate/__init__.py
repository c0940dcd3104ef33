"""Runs scripts' own calls of Keras' `fit()` and its like through gpukeras, where that is equal."""
