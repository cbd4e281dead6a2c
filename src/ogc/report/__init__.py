"""Everything that shows a run: progress in the terminal, the closing table, pictures, the HTML report."""
