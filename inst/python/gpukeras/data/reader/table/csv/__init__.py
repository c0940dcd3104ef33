"""Reads CSV files in blocks of complete records, parsed in several threads."""
