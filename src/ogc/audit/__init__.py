"""Which labels are wrong, and what they should be."""

from .suspicion import Issues, find_label_issues

__all__ = ["Issues", "find_label_issues"]
