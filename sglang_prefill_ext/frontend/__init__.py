"""From a scoring call to a packed request, and from a packed result to scores."""
