"""Pictures of a trace: a plotly figure for notebooks, and PNG and SVG files made of it."""
