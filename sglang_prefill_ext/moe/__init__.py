"""Which block of rows the experts of a mixture are computed in. numpy at most."""
