"""The packed message: all rows of a request in flat arrays, independent of any transport."""
