"""What is checked and run before the first request. Pure."""
