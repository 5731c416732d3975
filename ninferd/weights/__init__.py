"""Reading model weights from disk."""
