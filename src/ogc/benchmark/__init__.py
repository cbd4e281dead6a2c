"""The paper's tables and figures: what they hold, runs that fill them, and how they are shown."""
