"""Compare blocks of rows for experts by prediction, over synthetic and recorded routing."""
