"""Generated runs whose trouble is known, and what the advice makes of them."""
