"""An edge server: its clients, its exchanges with other servers, and what it remembers."""
