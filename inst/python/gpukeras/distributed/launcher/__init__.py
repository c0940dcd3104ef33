"""Starts workers as processes of this computer, and monitors them."""
