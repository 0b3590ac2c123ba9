"""Nodes beside one another: independent or synchronised, forward alone or with the backward."""
