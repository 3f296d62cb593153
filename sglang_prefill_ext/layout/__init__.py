"""The geometry of one forward: tokens, tiles, plans of its attention. Pure numpy."""
