"""What the name of a kernel tells: its class, its precision, its pass, and the units it uses."""
