"""Features from tables in files of any size, as columns of a data frame."""
