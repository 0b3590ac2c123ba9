"""Apply changes to a program, and measure their effect against the unchanged program."""
