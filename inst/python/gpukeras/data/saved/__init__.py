"""Saves datasets to disk, by request and as a cache, and reads them."""
