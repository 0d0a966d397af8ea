"""Pure decisions: values in, values out. No clock, no socket, no third-party package."""
