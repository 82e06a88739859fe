"""The worlds: one file each, with its constants, its bounds and where they come from."""
