"""Choose the block of rows in which MoE experts are computed. numpy, no torch."""
