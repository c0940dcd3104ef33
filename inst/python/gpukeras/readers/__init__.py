"""Tables in files, read in batches with bounded memory. Import `table` late: it needs pyarrow."""
