"""Saves datasets as `.npy` files, by request and as a cache, and reads them."""
