"""Recurrent layers over the layout of a packed forward: the gated delta rule."""
