"""What everything stands on: errors, options, messages, files and child processes."""
