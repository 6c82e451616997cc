"""How fast the engines are, beside the usual ways and the machine's limit."""
