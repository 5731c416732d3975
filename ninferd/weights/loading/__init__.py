"""From the spans of a source to matrices on a device. The plan and its sizes are free of torch."""
