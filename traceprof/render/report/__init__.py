"""Write the HTML report: every analysis of one trace on one page."""
