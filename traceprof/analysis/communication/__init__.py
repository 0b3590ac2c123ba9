"""Collectives (matched over the ranks), transfers, the network: bytes and bandwidth."""
