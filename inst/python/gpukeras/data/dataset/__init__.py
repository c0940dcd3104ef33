"""What a user holds: rows by number, or in sequence, with their recipe."""
