"""Where the time goes: traces read, attributed, judged."""
