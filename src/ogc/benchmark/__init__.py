"""The paper's tables and figures: their definition, the runs behind them, and their output formats."""
