"""Connections to other libraries. Each module imports its library, and none is imported by torch_openreg itself."""
