"""Cached keys and values: codecs, the bytes of a page, and the paged tensor."""
