"""Finds and opens files, of this computer and of stores."""
