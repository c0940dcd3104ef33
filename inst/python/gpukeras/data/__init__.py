"""Turns a user's rows into batches on the device."""
