"""Tables in files, of any size: read once, learned from and encoded with bounded memory."""
