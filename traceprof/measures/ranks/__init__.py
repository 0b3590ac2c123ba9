"""Ranks against one another: whose time went where, who comes late, and what that costs."""
