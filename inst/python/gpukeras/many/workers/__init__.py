"""Child processes that train models which do not stack: several at a time, each on its own."""
