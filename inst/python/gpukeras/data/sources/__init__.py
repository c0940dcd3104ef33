"""Where rows come from: arrays, data frames, files."""
