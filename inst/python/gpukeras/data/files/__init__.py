"""Reads tables from files in batches with bounded memory. Needs pyarrow."""
