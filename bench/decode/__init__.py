"""How packed load affects running generations, measured on real servers."""
