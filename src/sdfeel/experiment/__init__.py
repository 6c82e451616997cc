"""An experiment: its keys, its file, and the objects that carry it out."""
