"""Identities: names, certificates, the authority that signs them, the allow-list."""
