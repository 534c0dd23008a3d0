"""Every setting, gathered."""
