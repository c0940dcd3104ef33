"""The control channel: workers join, agree, and learn that one of them is lost."""
