"""What crosses a process boundary, as bytes."""
