"""A live page over runs: reads event logs, and nothing outside of one directory."""
