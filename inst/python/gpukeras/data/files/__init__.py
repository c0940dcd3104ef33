"""Tables in files, read in batches with bounded memory. Needs pyarrow."""
