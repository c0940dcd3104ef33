"""Sources of rows: arrays, data frames and files."""
