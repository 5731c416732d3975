"""The TOML tables, one model each, grouped in files by the part of the daemon that reads them."""
