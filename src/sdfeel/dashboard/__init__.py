"""A live page about runs: it reads event logs, and nothing outside one directory."""
