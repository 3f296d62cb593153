"""What maintainers run in a checkout: locks of what is changed and used, and tables of it."""
