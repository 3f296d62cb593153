"""What a process does beside its requests: garbage collection, and how it started."""
