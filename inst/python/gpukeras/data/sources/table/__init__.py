"""Tables in files, of any size, as the columns of a data frame."""
