"""Saves datasets to disk and reads them."""
