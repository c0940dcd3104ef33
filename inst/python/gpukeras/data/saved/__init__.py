"""Saves datasets as `.npy` files, and reads them."""
