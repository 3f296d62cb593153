"""The geometry of one forward: where its tokens lie, and plans of its attention. Pure numpy."""
