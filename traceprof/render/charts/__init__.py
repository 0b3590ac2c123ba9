"""Charts of comparisons, as SVG that needs no script."""
