"""Where responses lie."""
