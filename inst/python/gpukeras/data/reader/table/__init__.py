"""Tables in files of any size and in streams, as columns of a data frame. Needs pyarrow."""
