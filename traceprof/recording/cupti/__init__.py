"""What CUPTI itself records of a process: a library in C that is loaded into it, and its files."""
