"""Turns a user's rows into batches on the device: reader, recipe, loader, dataset."""
