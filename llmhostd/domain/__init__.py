"""Words: what every other layer speaks about. No behaviour beyond arithmetic on a value's own fields."""
