"""The demonstration: rank real text on a real server, packed path beside stock path."""
