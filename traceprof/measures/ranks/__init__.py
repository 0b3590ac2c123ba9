"""Compare ranks: where their time goes, which arrive late, and what the lateness costs."""
