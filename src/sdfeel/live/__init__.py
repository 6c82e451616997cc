"""A federation of real processes: identities, messages, edge servers and clients on a network."""
