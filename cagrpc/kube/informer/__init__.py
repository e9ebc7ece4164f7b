"""Resources that are listed and then watched."""
