"""How fast the engines are, compared with plain torch and the machine's limit."""
