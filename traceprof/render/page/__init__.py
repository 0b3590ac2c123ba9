"""What every HTML page is made of: the document, its style, its tables, plotly.js."""
