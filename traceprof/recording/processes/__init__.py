"""Starting the program that is recorded, passing signals on, ending what is left behind."""
