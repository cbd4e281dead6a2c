"""Find wrong labels and suggest the right ones."""

from .suspicion import Issues, find_label_issues

__all__ = ["Issues", "find_label_issues"]
