"""What a process needs besides requests: garbage collection, start, children, ports, limits."""
