"""The contents of ConfigMaps that others read: one module for each format, values in, text out."""
