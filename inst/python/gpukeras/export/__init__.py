"""Models saved, loaded and exported; what is refused on loading."""
