"""Draw charts of comparisons as SVG without scripts."""
