"""What a training leaves on disk, so that it goes on where the process was killed."""
