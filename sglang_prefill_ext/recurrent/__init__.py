"""Linear recurrences and convolutions over the layout of a packed forward."""
