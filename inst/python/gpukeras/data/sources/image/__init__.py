"""Image files as rows."""
