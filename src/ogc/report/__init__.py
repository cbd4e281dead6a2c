"""Output for users: progress in the terminal, the table of results, pictures, the HTML report."""
