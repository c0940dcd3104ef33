"""Turns rows into blocks of batches on the device."""
