"""What a training leaves on disk, so that it resumes where the process was killed."""
