"""What runs inside the program that is being recorded."""
