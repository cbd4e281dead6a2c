"""Adapters for where people already train; docs/integrations.md. Each needs its library, an extra of the same name."""
