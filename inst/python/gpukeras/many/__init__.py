"""Many models of one structure, trained as one program."""
