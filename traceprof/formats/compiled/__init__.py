"""What was compiled from the C beside it: one library for all formats, without Python in it."""
