"""Rules and laws of this package on training runs that others have published."""
