"""Image files as rows, and what varies them on the device."""
